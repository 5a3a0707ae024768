{{/* Name of everything that is installed once a release. A Service has at most 63 characters, 8 of them "-metrics".
     Helm allows releases 53. */}}
{{- define "operator.fullname" -}}
{{- $name := .Values.nameOverride | default "ringtrain-operator" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else if and (eq .Release.Name "ringtrain") (eq $name "ringtrain-operator") -}}
ringtrain-operator
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "operator.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "operator.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The group of jobs' claims; nothing: none. OpenShift's restricted SCC admits none but the namespace's own. */}}
{{- define "operator.fsGroup" -}}
{{- if ne (toString .Values.jobs.fsGroup) "Auto" -}}
{{- if .Values.jobs.fsGroup -}}{{ int64 .Values.jobs.fsGroup }}{{- end -}}
{{- else if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
65532
{{- end -}}
{{- end -}}

{{/* What the selectors match. */}}
{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "ringtrain-operator" }}
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The name of an image: (list its-values the-chart). */}}
{{- define "operator.imageName" -}}
{{- $image := index . 0 -}}
{{- $chart := index . 1 -}}
{{- with $image.registry | default $chart.Values.image.registry -}}{{ trimSuffix "/" . }}/{{- end -}}
{{ $image.repository }}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ $image.tag | default $chart.Chart.AppVersion }}{{- end -}}
{{- end -}}

{{- define "operator.image" -}}
{{ include "operator.imageName" (list .Values.image .) }}
{{- end -}}

{{- define "operator.agentImage" -}}
{{ include "operator.imageName" (list .Values.agent.image .) }}
{{- end -}}

{{- define "operator.agentVolume" -}}
{{- if ne .Values.agent.volume "Auto" -}}
{{ .Values.agent.volume }}
{{- else if and (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version) (not .Values.namespaces) -}}
{{- /* Older ones do not know image volumes, and CRI-O mounts them noexec. Without a cluster, or the right to see its nodes, none are found. */}}
{{- $volume := "InitContainer" -}}
{{- range $index, $node := (lookup "v1" "Node" "" "").items -}}
{{- $runs := dig "status" "nodeInfo" "containerRuntimeVersion" "" $node | regexMatch "^containerd://v?(2[.][1-9]|[3-9][.]|[1-9][0-9]+[.])" -}}
{{- $volume = ternary "ImageVolume" "InitContainer" (and $runs (or (eq $index 0) (eq $volume "ImageVolume"))) -}}
{{- end -}}
{{- $volume -}}
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
- apiGroups: [ringtrain.dev]
  resources: [trainingtemplates]
  verbs: [get]
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
# Listed: those of a pod that does not start, since a kubelet says only there that a volume's ConfigMap is not there.
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
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

{{- /* Kinds of the cluster: templates; with Kueue, what an admission's nodes and a Workload's priority are. */}}
{{- define "operator.clusterRules" -}}
- apiGroups: [ringtrain.dev]
  resources: [clustertrainingtemplates]
  verbs: [get]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}
{{- end -}}
