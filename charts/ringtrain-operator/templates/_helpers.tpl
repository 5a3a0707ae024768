{{/* Name of everything that is installed once a release. A Service has at most 63 characters, 8 of them "-metrics".
     Helm allows releases 53. */}}
{{- define "operator.fullname" -}}
{{- if contains "ringtrain-operator" .Release.Name -}}
{{- .Release.Name -}}
{{- else if eq .Release.Name "ringtrain" -}}
ringtrain-operator
{{- else -}}
{{- printf "%s-ringtrain-operator" .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What the selectors match. */}}
{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: ringtrain-operator
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "operator.agentImage" -}}
{{- with .Values.agent.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "operator.agentVolume" -}}
{{- if ne .Values.agent.volume "Auto" -}}
{{ .Values.agent.volume }}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}
ImageVolume
{{- else -}}
InitContainer
{{- end -}}
{{- end -}}

{{/* What the operator may do where it serves jobs. Secrets: create only, it never reads one. */}}
{{- define "operator.rules" -}}
- apiGroups: [ringtrain.dev]
  resources: [distributedtrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ringtrain.dev]
  resources: [distributedtrainingjobs/status]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, owning an object takes this right on the owner.
- apiGroups: [ringtrain.dev]
  resources: [distributedtrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- $groups := dict "kubernetes" "scheduling.k8s.io" "coscheduling" "scheduling.x-k8s.io" "volcano" "scheduling.volcano.sh" }}
{{- range $gang, $group := $groups }}
{{- if index $.Values.gangs $gang }}
- apiGroups: [{{ $group }}]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete]
{{- end }}
{{- end }}
{{- if .Values.provisioning.enabled }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [provisioningrequests]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [podtemplates]
  verbs: [get, list, create, delete]
{{- end }}
{{- end -}}

{{- /* What an admission's nodes and a Workload's priority are. */}}
{{- define "operator.kueueClusterRules" -}}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end -}}
