"""Pod templates that Kubernetes refuses, each with the field to name, and templates at the limits that it accepts.

`dtj validate` and a real API server judge the same table.
"""

from dataclasses import dataclass
from typing import Any

from contract.spec_cases import Manifest, manifest, worker


@dataclass(frozen=True)
class PodCase:
    """A worker's template and, if it is wrong, the `field` below it that is named.

    `says` is in the message. `server`: the field in the API server's words, if those differ by more than a key in
    brackets. `answer`: words of the API server if it names no field. `warns`: the API server accepts the pod with a
    warning, and no kubelet can run it.
    """

    template: Manifest
    field: str = ""
    says: str = "expected"
    server: str = ""
    answer: str = ""
    warns: bool = False

    @property
    def manifest(self) -> Manifest:
        """A DistributedTrainingJob whose workers have the template."""
        return manifest(worker={"replicas": 2, "template": self.template})

    @property
    def pod(self) -> Manifest:
        """A pod of the template."""
        metadata = {"name": "judged", **self.template.get("metadata", {})}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.template["spec"]}

    @property
    def batch_job(self) -> Manifest:
        """A Job of Kubernetes with the template: no admission plugin refuses its pods before their fields are read."""
        template = {**self.template, "spec": {"restartPolicy": "Never", **self.template["spec"]}}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "judged"}, "spec": {"template": template}}

    def is_named(self, server_field: str) -> bool:
        """Return whether the API server's field is this case's."""
        field = server_field.removeprefix("spec.template.")
        field = f"metadata.{field}" if field in ("labels", "annotations") else field
        return self.field == field or self.server == field or self.field.startswith(f"{field}[")


def _in_container(field: str, container: Manifest, pod: Manifest | None = None, **options: Any) -> PodCase:
    return PodCase(worker(container, pod)["template"], f"spec.containers[0].{field}", **options)


def _in_pod(field: str, pod: Manifest, **options: Any) -> PodCase:
    return PodCase(worker(pod=pod)["template"], f"spec.{field}", **options)


def _in_metadata(field: str, metadata: Manifest) -> PodCase:
    return PodCase({**worker()["template"], "metadata": metadata}, f"metadata.{field}")


def _in_volume(field: str, source: Manifest, **options: Any) -> PodCase:
    return _in_pod(f"volumes[0]{field}", {"volumes": [{"name": "data", **source}]}, **options)


def _in_variable(field: str, source: Manifest, **options: Any) -> PodCase:
    return _in_container(f"env[0]{field}", {"env": [{"name": "A", **source}]}, **options)


def _in_mount(field: str, mount: Manifest, **options: Any) -> PodCase:
    mounts = [{"name": "data", "mountPath": "/data", **mount}]
    return _in_container(f"volumeMounts[0].{field}", {"volumeMounts": mounts}, _DATA, **options)


def _in_affinity(field: str, affinity: Manifest, **options: Any) -> PodCase:
    return _in_pod(f"affinity.{field}", {"affinity": affinity}, **options)


def _resources(**resources: Manifest) -> Manifest:
    return {"resources": resources}


def _sidecar(**fields: Any) -> Manifest:
    return {"initContainers": [{"name": "side", "image": "a", "restartPolicy": "Always", **fields}]}


def _claim(**fields: Any) -> Manifest:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **fields}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def _projected(source: str, **fields: Any) -> Manifest:
    return {"projected": {"sources": [{source: fields}]}}


def _resized(**fields: str) -> Manifest:
    return {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired", **fields}]}


def _ruled(**fields: Any) -> Manifest:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}, **fields}
    return {"restartPolicy": "Never", "restartPolicyRules": [rule]}


def _expression(**fields: Any) -> Manifest:
    return {_TERMS: {"nodeSelectorTerms": [{"matchExpressions": [fields]}]}}


def _node_field(**fields: Any) -> Manifest:
    return {_TERMS: {"nodeSelectorTerms": [{"matchFields": [fields]}]}}


def _unit(resource: str, divisor: Any) -> Manifest:
    return {"valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}


def _shared(amounts: Manifest, *containers: Manifest, **pod: Any) -> Manifest:
    """A pod with amounts of its own, and containers with theirs."""
    given = [{"name": f"c{i}", "image": "a", "command": ["a"], "resources": one} for i, one in enumerate(containers)]
    return {"resources": amounts, "containers": given, **pod}


def _first(amounts: Manifest, **fields: Any) -> Manifest:
    return {"initContainers": [{"name": "first", "image": "a", "resources": amounts, **fields}]}


def _set(name: str, **pod: Any) -> Manifest:
    return {"securityContext": {"sysctls": [{"name": name, "value": "1"}]}, **pod}


def _files(source: str, *paths: str) -> Manifest:
    return {source: {"name": source.lower(), "items": [{"key": "a", "path": path} for path in paths]}}


_DISKS = {
    "azureDisk": {"diskName": "a", "diskURI": "https://a"},
    "iscsi": {"targetPortal": "a", "iqn": "iqn.2026-01.dev.ringtrain:a", "lun": 0},
    "scaleIO": {"gateway": "a", "system": "b", "secretRef": {"name": "c"}, "volumeName": "d"},
}
_ON_WINDOWS = {"securityContext": {"windowsOptions": {"runAsUserName": "a"}}}
_CLAIM_SPEC = "spec.volumes[0].ephemeral.volumeClaimTemplate.spec"
_DATA = {"volumes": [{"name": "data", "emptyDir": {}}]}
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
_LIKED = "preferredDuringSchedulingIgnoredDuringExecution"
_SECURE = {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}
_PROBE = {"exec": {"command": ["a"]}}
_CLAIM = "spec.containers[0].resources.claims[0]"
_DISK = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]}
_DEVICES = [{"name": "data", "devicePath": "/dev/a"}]
_PORTS = {"ports": [{"containerPort": 80}]}
_TOKENS = {"projected": {"sources": [{"serviceAccountToken": {"path": "a"}}] * 2}}
_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}

WRONG = [
    # names
    _in_container("name", {"name": "Train_1"}),
    _in_container("name", {"name": "a" * 64}),
    _in_container("name", {"name": "train.a"}),
    _in_container("image", {"image": " example.com/train"}),
    _in_pod(
        "containers[1].name",
        {"containers": [{"name": "a", "image": "a", "command": ["a"]}, {"name": "a", "image": "a"}]},
        says="as is",
    ),
    _in_pod("initContainers[0].name", {"initContainers": [{"name": "-a", "image": "a"}]}),
    _in_pod("initContainers[0].image", {"initContainers": [{"name": "a"}]}, says="missing"),
    _in_pod("serviceAccountName", {"serviceAccountName": "My_Account"}),
    _in_pod("priorityClassName", {"priorityClassName": "High!"}),
    _in_pod("runtimeClassName", {"runtimeClassName": "NVIDIA"}),
    _in_pod("nodeName", {"nodeName": "Node 1"}),
    _in_pod("imagePullSecrets[0].name", {"imagePullSecrets": [{"name": ""}]}, warns=True),
    # metadata
    _in_metadata("labels[run]", {"labels": {"run": "has space"}}),
    _in_metadata("labels[a/b/c]", {"labels": {"a/b/c": "x"}}),
    _in_metadata("labels[Not_A_Domain/x]", {"labels": {"Not_A_Domain/x": "x"}}),
    _in_metadata("labels[run]", {"labels": {"run": "a" * 64}}),
    _in_metadata("annotations[bad key!]", {"annotations": {"bad key!": "x"}}),
    _in_metadata("annotations", {"annotations": {"large": "x" * (256 << 10)}}),
    # resources
    _in_container("resources.requests[memory]", _resources(requests={"memory": "4Gi"}, limits={"memory": "2Gi"})),
    _in_container("resources.requests[cpu]", _resources(requests={"cpu": "1500m"}, limits={"cpu": 1})),
    _in_container(
        "resources.requests[nvidia.com/gpu]", _resources(requests={"nvidia.com/gpu": 2}, limits={"nvidia.com/gpu": 1})
    ),
    _in_container(
        "resources.requests[nvidia.com/gpu]", _resources(requests={"nvidia.com/gpu": 1}, limits={"nvidia.com/gpu": 2})
    ),
    _in_container("resources.limits[nvidia.com/gpu]", _resources(requests={"nvidia.com/gpu": 1})),
    _in_container("resources.limits[nvidia.com/gpu]", _resources(limits={"nvidia.com/gpu": "500m"})),
    _in_container("resources.limits[memory]", _resources(limits={"memory": "512m"}), says="512M", warns=True),
    _in_container("resources.requests[memory]", _resources(requests={"memory": "-1Gi"})),
    _in_container("resources.limits[gpu]", _resources(limits={"gpu": 1})),
    _in_container(
        "resources.claims[0].name",
        {"resources": {"claims": [{"name": "gpu"}]}},
        says="no such resource claim",
        server=_CLAIM,
    ),
    _in_container(
        "resources.claims[0].name",
        {"resources": {"claims": [{"name": "gpus"}]}},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}]},
        says="did you mean gpu?",
        server=_CLAIM,
    ),
    _in_container("resources.limits[ram]", _resources(limits={"ram": "1Gi"})),
    _in_container("resources.limits[a b/c]", _resources(limits={"a b/c": 1})),
    _in_container("resources", _resources(limits={"hugepages-2Mi": "4Mi"})),
    _in_container("resources.limits[hugepages-2Mi]", _resources(limits={"hugepages-2Mi": "3Mi", "cpu": "1"})),
    _in_pod("ephemeralContainers", {"ephemeralContainers": [{"name": "debug", "image": "a"}]}),
    # ports
    _in_container("ports[0].containerPort", {"ports": [{"containerPort": 99999}]}),
    _in_container("ports[0].containerPort", {"ports": [{"containerPort": 0}]}),
    _in_container("ports[0].hostPort", {"ports": [{"containerPort": 80, "hostPort": 70000}]}),
    _in_container("ports[0].name", {"ports": [{"containerPort": 80, "name": "Web_Port"}]}),
    _in_container("ports[0].name", {"ports": [{"containerPort": 80, "name": "a-name-of-16-chr"}]}),
    _in_container("ports[0].protocol", {"ports": [{"containerPort": 80, "protocol": "HTTP"}]}, says="allowed"),
    _in_container(
        "ports[1].name",
        {"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]},
        says="as is",
    ),
    # variables
    _in_container("env[0].name", {"env": [{"name": "A=B", "value": "x"}]}),
    _in_container("env[0].name", {"env": [{"name": "", "value": "x"}]}),
    _in_variable(
        ".valueFrom",
        {"value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        says="in addition to value",
    ),
    _in_variable(".valueFrom", {"valueFrom": {}}),
    _in_variable(
        ".valueFrom",
        {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "a", "key": "b"}}},
    ),
    _in_variable(".valueFrom.fieldRef.fieldPath", {"valueFrom": {"fieldRef": {"fieldPath": "spec.hostname"}}}),
    _in_variable(
        ".valueFrom.resourceFieldRef.resource", {"valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}
    ),
    _in_variable(".valueFrom.secretKeyRef.key", {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b c"}}}),
    _in_variable(".valueFrom.configMapKeyRef.name", {"valueFrom": {"configMapKeyRef": {"key": "b"}}}, says="missing"),
    _in_container("envFrom[0]", {"envFrom": [{}]}),
    _in_container("envFrom[0].prefix", {"envFrom": [{"prefix": "A=", "secretRef": {"name": "a"}}]}),
    _in_container("envFrom[0].configMapRef.name", {"envFrom": [{"configMapRef": {}}]}, says="missing"),
    # volumes and mounts
    _in_volume(".name", {"name": "Data_1", "emptyDir": {}}),
    _in_volume("", {"emptyDir": {}, "configMap": {"name": "a"}}, server="spec.volumes[0].configMap"),
    _in_volume(".emptyDir.sizeLimit", {"emptyDir": {"sizeLimit": "-1Gi"}}),
    _in_volume(".hostPath.path", {"hostPath": {"path": "/a/../b"}}),
    _in_volume(".hostPath.type", {"hostPath": {"path": "/a", "type": "Dir"}}, says="allowed"),
    _in_volume(".secret.secretName", {"secret": {}}, says="missing"),
    _in_volume(".secret.defaultMode", {"secret": {"secretName": "a", "defaultMode": 1000}}),
    _in_volume(".configMap.name", {"configMap": {}}, says="missing"),
    _in_volume(".configMap.items[0].path", {"configMap": {"name": "a", "items": [{"key": "b", "path": "../b"}]}}),
    _in_volume(
        ".configMap.items[0].mode", {"configMap": {"name": "a", "items": [{"key": "b", "path": "b", "mode": 888}]}}
    ),
    _in_volume(".persistentVolumeClaim.claimName", {"persistentVolumeClaim": {"claimName": ""}}),
    _in_volume(".nfs.path", {"nfs": {"server": "a", "path": "data"}}),
    _in_volume(".nfs.server", {"nfs": {"server": "", "path": "/data"}}),
    _in_volume(
        ".projected.sources[0]", {"projected": {"sources": [{"secret": {"name": "a"}, "configMap": {"name": "b"}}]}}
    ),
    _in_volume(
        ".downwardAPI.items[0].fieldRef.fieldPath",
        {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}]}},
        server="spec.volumes[0].downwardAPI.fieldRef.fieldPath",
    ),
    _in_volume(".image.pullPolicy", {"image": {"reference": "a", "pullPolicy": "Sometimes"}}, says="allowed"),
    _in_pod(
        "volumes[1].name", {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]}, says="as is"
    ),
    _in_mount("mountPath", {"mountPath": ""}),
    _in_mount("subPath", {"subPath": "../up"}, server="spec.containers[0].volumeMounts.subPath"),
    _in_mount("subPath", {"subPath": "/absolute"}, server="spec.containers[0].volumeMounts.subPath"),
    _in_mount("subPathExpr", {"subPath": "a", "subPathExpr": "b"}),
    _in_mount("name", {"name": "dta"}, says="did you mean data?"),
    _in_mount("name", {"name": "other"}, says="it has data; add it to spec.worker.template.spec.volumes"),
    # probes and hooks
    _in_container("livenessProbe", {"livenessProbe": {}}),
    _in_container(
        "livenessProbe",
        {"livenessProbe": {**_PROBE, "tcpSocket": {"port": 80}}},
        server="spec.containers[0].livenessProbe.tcpSocket",
    ),
    _in_container("livenessProbe.successThreshold", {"livenessProbe": {**_PROBE, "successThreshold": 2}}),
    _in_container("readinessProbe.periodSeconds", {"readinessProbe": {**_PROBE, "periodSeconds": -1}}),
    _in_container("startupProbe.httpGet.port", {"startupProbe": {"httpGet": {"port": 0, "path": "/"}}}),
    _in_container(
        "startupProbe.httpGet.scheme", {"startupProbe": {"httpGet": {"port": 1, "scheme": "ftp"}}}, says="allowed"
    ),
    _in_container("livenessProbe.exec.command", {"livenessProbe": {"exec": {}}}, says="missing"),
    _in_container("lifecycle.preStop", {"lifecycle": {"preStop": {}}}),
    # rights
    _in_container("securityContext.runAsUser", {"securityContext": {"runAsUser": -1}}),
    _in_container("securityContext.allowPrivilegeEscalation", _SECURE, server="spec.containers[0].securityContext"),
    _in_container(
        "securityContext.seccompProfile.localhostProfile",
        {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
    ),
    _in_pod("securityContext.fsGroup", {"securityContext": {"fsGroup": -5}}),
    _in_pod("securityContext.supplementalGroups[0]", {"securityContext": {"supplementalGroups": [-5]}}),
    _in_pod("securityContext.sysctls[0].name", {"securityContext": {"sysctls": [{"name": "a b", "value": "1"}]}}),
    # placement
    _in_pod("nodeSelector[disk]", {"nodeSelector": {"disk": "has space"}}),
    _in_pod("nodeSelector[bad key!]", {"nodeSelector": {"bad key!": "x"}}),
    _in_pod("tolerations[0].key", {"tolerations": [{"key": "bad key!", "operator": "Exists"}]}),
    _in_pod(
        "tolerations[0].operator", {"tolerations": [{"key": "a", "operator": "Equals", "value": "b"}]}, says="allowed"
    ),
    _in_pod("tolerations[0].operator", {"tolerations": [{"operator": "Equal", "value": "b"}]}),
    _in_pod(
        "tolerations[0].value",
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        server="spec.tolerations[0].operator",
    ),
    _in_pod(
        "tolerations[0].effect",
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoStart"}]},
        says="allowed",
    ),
    _in_pod(
        "tolerations[0].effect",
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]},
    ),
    _in_affinity(f"nodeAffinity.{_TERMS}.nodeSelectorTerms", {"nodeAffinity": {_TERMS: {"nodeSelectorTerms": []}}}),
    _in_affinity(
        f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchExpressions[0].operator",
        {"nodeAffinity": {_TERMS: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}}},
        says="allowed",
    ),
    _in_affinity(
        f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchExpressions[0].values",
        {"nodeAffinity": {_TERMS: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}}},
    ),
    _in_affinity(
        f"nodeAffinity.{_LIKED}[0].weight",
        {
            "nodeAffinity": {
                _LIKED: [{"weight": 101, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]
            }
        },
    ),
    _in_affinity(
        f"podAntiAffinity.{_TERMS}[0].topologyKey",
        {"podAntiAffinity": {_TERMS: [{"topologyKey": "", "labelSelector": {}}]}},
    ),
    _in_affinity(
        f"podAffinity.{_TERMS}[0].labelSelector.matchLabels[a]",
        {"podAffinity": {_TERMS: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b c"}}}]}},
    ),
    _in_pod("topologySpreadConstraints[0].maxSkew", {"topologySpreadConstraints": [{**_SPREAD, "maxSkew": 0}]}),
    _in_pod(
        "topologySpreadConstraints[0].whenUnsatisfiable",
        {"topologySpreadConstraints": [{**_SPREAD, "whenUnsatisfiable": "Never"}]},
        says="allowed",
    ),
    # the rest of a pod
    _in_pod("activeDeadlineSeconds", {"activeDeadlineSeconds": 0}),
    _in_pod("dnsPolicy", {"dnsPolicy": "Cluster"}, says="allowed"),
    _in_pod("dnsConfig.nameservers[0]", {"dnsConfig": {"nameservers": ["dns.example.com"]}}),
    _in_pod("hostAliases[0].ip", {"hostAliases": [{"ip": "1.2.3", "hostnames": ["a"]}]}),
    _in_pod("hostAliases[0].hostnames[0]", {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["A_B"]}]}),
    _in_pod("readinessGates[0].conditionType", {"readinessGates": [{"conditionType": "a b"}]}),
    _in_pod("schedulingGates[0].name", {"schedulingGates": [{"name": "a b"}]}, server="spec.schedulingGates[0]"),
    _in_pod("initContainers[0].restartPolicy", _sidecar(restartPolicy="Sometimes")),
    _in_pod(
        "initContainers[0].livenessProbe", {"initContainers": [{"name": "a", "image": "a", "livenessProbe": _PROBE}]}
    ),
    _in_pod(
        "shareProcessNamespace",
        {"shareProcessNamespace": True, "hostPID": True},
        server="spec.securityContext.shareProcessNamespace",
    ),
    # more of each kind
    _in_container("image", {"image": ""}, says="missing"),
    _in_container("restartPolicy", {"restartPolicy": "Sometimes"}),
    _in_container("terminationMessagePolicy", {"terminationMessagePolicy": "Logs"}, says="allowed"),
    _in_container("ports[0].name", {"ports": [{"containerPort": 80, "name": "123"}]}),
    _in_container("ports[0].name", {"ports": [{"containerPort": 80, "name": "a--b"}]}),
    _in_container("ports[0].hostPort", {"ports": [{"containerPort": 80, "hostPort": 81}]}, {"hostNetwork": True}),
    _in_container(
        "ports[1].hostPort",
        {"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]},
    ),
    _in_container("env[0].name", {"env": [{"name": "\u00fc", "value": "x"}]}),
    _in_container(
        "envFrom[0]",
        {"envFrom": [{"secretRef": {"name": "a"}, "configMapRef": {"name": "b"}}]},
        server="spec.containers[0].envFrom",
    ),
    _in_container("envFrom[0].secretRef.name", {"envFrom": [{"secretRef": {"name": "A_"}}]}),
    _in_variable(".valueFrom.fieldRef.fieldPath", {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}}),
    _in_container("resources.limits[ephemeral-storage]", _resources(limits={"ephemeral-storage": "1m"}), warns=True),
    _in_container("resources.limits[storage]", _resources(limits={"storage": "1Gi"})),
    _in_container("resources.limits[requests.x/y]", _resources(limits={"requests.x/y": 1})),
    _in_container("resources.limits[a.io/b]", _resources(limits={"a.io/b": "1.5"})),
    _in_container(
        "resources.requests[hugepages-2Mi]",
        _resources(limits={"cpu": 1, "hugepages-2Mi": "4Mi"}, requests={"hugepages-2Mi": "2Mi"}),
    ),
    _in_container(
        "readinessProbe.terminationGracePeriodSeconds",
        {"readinessProbe": {**_PROBE, "terminationGracePeriodSeconds": 5}},
    ),
    _in_container(
        "livenessProbe.terminationGracePeriodSeconds", {"livenessProbe": {**_PROBE, "terminationGracePeriodSeconds": 0}}
    ),
    _in_container("livenessProbe.httpGet.port", {"livenessProbe": {"httpGet": {"port": "Web_"}}}),
    _in_container("livenessProbe.grpc.port", {"livenessProbe": {"grpc": {"port": 0}}}),
    _in_container(
        "volumeMounts[1].mountPath",
        {"volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/a"}]},
        _DATA,
    ),
    _in_mount(
        "mountPropagation",
        {"mountPropagation": "Bidirectional"},
        server="spec.containers[0].volumeMounts.mountPropagation",
    ),
    _in_container(
        "securityContext.allowPrivilegeEscalation",
        {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
        server="spec.containers[0].securityContext",
    ),
    _in_container(
        "securityContext.seccompProfile.localhostProfile",
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}}},
    ),
    _in_container(
        "securityContext.appArmorProfile.localhostProfile",
        {"securityContext": {"appArmorProfile": {"type": "Localhost"}}},
    ),
    _in_container("securityContext.runAsGroup", {"securityContext": {"runAsGroup": 1 << 31}}),
    _in_volume(".hostPath.path", {"hostPath": {"path": ""}}),
    _in_volume(".csi.driver", {"csi": {"driver": "A B"}}),
    _in_pod(
        "tolerations[0].value", {"tolerations": [{"key": "a", "value": "b c"}]}, server="spec.tolerations[0].operator"
    ),
    _in_pod("tolerations[0].operator", {"tolerations": [{}]}),
    *(
        _in_affinity(
            f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchExpressions[0].{field}",
            {"nodeAffinity": {_TERMS: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}},
        )
        for field, expression in (
            ("values", {"key": "a", "operator": "Exists", "values": ["x"]}),
            ("values", {"key": "a", "operator": "Gt", "values": ["1", "2"]}),
            ("key", {"key": "a b", "operator": "Exists"}),
            ("values[0]", {"key": "a", "operator": "In", "values": ["a b"]}),
        )
    ),
    _in_affinity(
        f"podAffinity.{_TERMS}[0].labelSelector.matchExpressions[0].operator",
        {
            "podAffinity": {
                _TERMS: [
                    {
                        "topologyKey": "zone",
                        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
                    }
                ]
            }
        },
    ),
    _in_pod("topologySpreadConstraints[0].minDomains", {"topologySpreadConstraints": [{**_SPREAD, "minDomains": 0}]}),
    _in_pod(
        "topologySpreadConstraints[0].minDomains",
        {"topologySpreadConstraints": [{**_SPREAD, "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1}]},
    ),
    _in_pod("dnsConfig.nameservers", {"dnsConfig": {"nameservers": [f"1.1.1.{n}" for n in range(4)]}}),
    _in_pod("dnsConfig.searches[0]", {"dnsConfig": {"searches": ["A B"]}}),
    _in_pod("preemptionPolicy", {"preemptionPolicy": "Always"}, says="allowed"),
    _in_pod("resourceClaims[0].name", {"resourceClaims": [{"name": "A", "resourceClaimName": "a"}]}),
    _in_pod(
        "resourceClaims[1].name",
        {"resourceClaims": [{"name": "a", "resourceClaimName": "a"}, {"name": "a", "resourceClaimName": "b"}]},
        says="as is",
    ),
    _in_pod("hostNetwork", {"hostUsers": False, "hostNetwork": True}),
    _in_pod("hostIPC", {"hostUsers": False, "hostIPC": True}, server="spec.HostIPC"),
    # sources of volumes
    *(
        _in_volume(f".ephemeral.volumeClaimTemplate.spec.{field}", _claim(**fields), says=says, server=server)
        for field, fields, says, server in (
            ("accessModes", {"accessModes": None}, "missing", ""),
            ("accessModes", {"accessModes": []}, "empty", ""),
            ("accessModes[0]", {"accessModes": ["RWO"]}, "allowed", ""),
            ("accessModes", {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}, "without other", ""),
            ("resources.requests[storage]", {"resources": {}}, "10Gi", f"{_CLAIM_SPEC}.resources[storage]"),
            (
                "resources.requests[storage]",
                {"resources": {"requests": {"storage": 0}}},
                "more than 0",
                f"{_CLAIM_SPEC}.resources[storage]",
            ),
            ("storageClassName", {"storageClassName": "A B"}, "expected", ""),
            ("volumeAttributesClassName", {"volumeAttributesClassName": "A B"}, "expected", ""),
            ("dataSource", {"dataSource": {"kind": "Disk", "name": "a"}}, "PersistentVolumeClaim", ""),
            ("dataSource.name", {"dataSource": {"kind": "PersistentVolumeClaim", "name": ""}}, "empty", ""),
            ("dataSourceRef", {"dataSourceRef": {"kind": "Disk", "name": "a"}}, "PersistentVolumeClaim", ""),
        )
    ),
    _in_volume(".ephemeral.volumeClaimTemplate", {"ephemeral": {}}, says="missing"),
    _in_volume(
        ".ephemeral.volumeClaimTemplate.metadata.name",
        {
            "ephemeral": {
                "volumeClaimTemplate": {"metadata": {"name": "a"}, **_claim()["ephemeral"]["volumeClaimTemplate"]}
            }
        },
    ),
    _in_volume(".image.reference", {"image": {}}, says="missing"),
    _in_volume(".flexVolume.driver", {"flexVolume": {"driver": ""}}, says="empty"),
    _in_volume(".cephfs.monitors", {"cephfs": {"monitors": []}}, says="empty"),
    _in_volume(".fc", {"fc": {}}, server="spec.volumes[0].fc.targetWWNs"),
    _in_volume(".flocker", {"flocker": {}}),
    _in_volume(".storageos.volumeName", {"storageos": {}}, says="missing"),
    _in_volume(
        ".scaleIO.volumeName", {"scaleIO": {"gateway": "a", "system": "b", "secretRef": {"name": "c"}}}, says="missing"
    ),
    _in_volume(
        ".projected.sources[0].serviceAccountToken.expirationSeconds",
        _projected("serviceAccountToken", path="a", expirationSeconds=599),
    ),
    _in_volume(
        ".projected.sources[0].serviceAccountToken.path",
        _projected("serviceAccountToken", path="/a"),
        server="spec.volumes[0].projected.path",
    ),
    _in_mount("subPathExpr", {"subPathExpr": "../a"}, server="spec.containers[0].volumeMounts.subPathExpr"),
    *(
        _in_mount("recursiveReadOnly", fields, server="spec.containers[0].volumeMounts.recursiveReadOnly")
        for fields in ({"recursiveReadOnly": "On"}, {"recursiveReadOnly": "Enabled"})
    ),
    _in_container("volumeDevices[0].devicePath", {"volumeDevices": [{"name": "data", "devicePath": "../a"}]}, _DATA),
    *(
        _in_volume(f".{kind}{field}", {kind: {**_DISKS.get(kind, {}), **given}})
        for kind, field, given in (
            ("azureDisk", ".diskURI", {"kind": "Managed"}),
            ("azureDisk", ".diskURI", {"diskURI": "/subscriptions/a"}),
            ("fc", ".lun", {"targetWWNs": ["a"]}),
            ("fc", ".lun", {"targetWWNs": ["a"], "lun": 256}),
            ("flocker", ".datasetName", {"datasetName": "a/b"}),
            ("awsElasticBlockStore", ".partition", {"volumeID": "a", "partition": 256}),
            ("gitRepo", ".directory", {"repository": "a", "directory": "../a"}),
            ("iscsi", ".iqn", {"iqn": "a"}),
            ("iscsi", ".lun", {"lun": 256}),
            ("iscsi", ".secretRef", {"chapAuthSession": True}),
            ("quobyte", ".registry", {"registry": "a", "volume": "b"}),
            ("quobyte", ".volume", {"registry": "a:1", "volume": ""}),
            ("scaleIO", ".gateway", {"gateway": ""}),
            ("glusterfs", ".endpoints", {"endpoints": "", "path": "a"}),
            ("glusterfs", ".path", {"endpoints": "a", "path": ""}),
            ("rbd", ".image", {"monitors": ["a"], "image": ""}),
            ("rbd", ".monitors", {"monitors": [], "image": "a"}),
            ("cinder", ".volumeID", {"volumeID": ""}),
            ("vsphereVolume", ".volumePath", {"volumePath": ""}),
            ("azureFile", ".shareName", {"secretName": "a", "shareName": ""}),
            ("photonPersistentDisk", ".pdID", {"pdID": ""}),
            ("portworxVolume", ".volumeID", {"volumeID": ""}),
        )
    ),
    _in_volume(
        ".gcePersistentDisk.partition",
        {"gcePersistentDisk": {"pdName": "a", "partition": -1}},
        server="spec.volumes[0].persistentDisk.partition",
    ),
    *(
        _in_volume(
            f".projected.sources[{number}]{field}",
            {"projected": {"sources": sources}},
            says=says,
            server="spec.volumes[0].projected" if says == "as is" else "",
        )
        for number, field, says, sources in (
            (1, ".configMap.items[0].path", "as is", [_files("secret", "a"), _files("configMap", "a")]),
            (0, ".secret.items[1].path", "as is", [_files("secret", "a", "a")]),
            (0, ".secret.items[0].path", "expected", [_files("secret", "/a")]),
            (0, ".configMap.items[0].path", "expected", [_files("configMap", "..data/a")]),
        )
    ),
    _in_variable(
        ".valueFrom.fieldRef.apiVersion",
        {"valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}},
        server="spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    _in_container(
        "resources.claims[1].name",
        {"resources": {"claims": [{"name": "gpu"}, {"name": "gpu"}]}},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}]},
        says="as is",
        server="spec.containers[0].resources.claims[1]",
    ),
    # words that a field allows
    *(_in_pod("os.name", {"os": {"name": name}}, server="spec.os") for name in ("mac", "Linux")),
    *(
        PodCase({"spec": {**worker(main)["template"]["spec"], **pod, "os": {"name": "linux"}}}, f"spec.{field}")
        for field, main, pod in (
            ("securityContext.windowsOptions", {}, _ON_WINDOWS),
            ("containers[0].securityContext.windowsOptions", _ON_WINDOWS, {}),
            (
                "initContainers[0].securityContext.windowsOptions",
                {},
                {"initContainers": [{"name": "a", "image": "a", **_ON_WINDOWS}]},
            ),
        )
    ),
    _in_pod("os.name", {"os": {"name": ""}}, says="empty"),
    _in_pod("securityContext.seLinuxChangePolicy", {"securityContext": {"seLinuxChangePolicy": "Never"}}),
    _in_container("resizePolicy[0].resourceName", _resized(resourceName="gpu")),
    _in_container("resizePolicy[0].restartPolicy", _resized(restartPolicy="RestartContainer")),
    _in_container(
        "resizePolicy[1].resourceName",
        {"resizePolicy": [*_resized()["resizePolicy"], *_resized()["resizePolicy"]]},
        says="as is",
        server="spec.containers[0].resizePolicy[1]",
    ),
    _in_container("restartPolicyRules[0].action", _ruled(action="Stop")),
    _in_container("restartPolicyRules[0].exitCodes", _ruled(exitCodes=None), says="missing"),
    _in_container("restartPolicyRules[0].exitCodes.operator", _ruled(exitCodes={"operator": "Is", "values": [1]})),
    # more of affinity and spreading
    *(
        _in_affinity(
            f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchFields[0].{field}", {"nodeAffinity": _node_field(**given)}
        )
        for field, given in (
            ("key", {"key": "metadata.labels", "operator": "In", "values": ["a"]}),
            ("operator", {"key": "metadata.name", "operator": "Exists"}),
            ("values", {"key": "metadata.name", "operator": "In", "values": ["a", "b"]}),
        )
    ),
    *(
        _in_affinity(
            f"podAffinity.{_TERMS}[0].{field}",
            {"podAffinity": {_TERMS: [{"topologyKey": "zone", "labelSelector": {}, **given}]}},
            server=f"spec.affinity.podAffinity.{_TERMS}[0].namespace" if "namespaces" in given else "",
        )
        for field, given in (
            ("namespaces[0]", {"namespaces": ["A B"]}),
            ("matchLabelKeys[0]", {"matchLabelKeys": ["a b"]}),
            ("matchLabelKeys", {"labelSelector": None, "matchLabelKeys": ["a"]}),
        )
    ),
    *(
        _in_pod(
            f"topologySpreadConstraints[0].{field}",
            {"topologySpreadConstraints": [{**_SPREAD, "matchLabelKeys": keys, "labelSelector": selector}]},
        )
        for field, keys, selector in (("matchLabelKeys[0]", ["a b"], {}), ("matchLabelKeys", ["a"], None))
    ),
    _in_pod(
        "topologySpreadConstraints[1]",
        {"topologySpreadConstraints": [_SPREAD, _SPREAD]},
        says="as is",
        server="spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}",
    ),
    # names and numbers
    _in_pod("hostnameOverride", {"hostnameOverride": "A_b"}),
    _in_pod("resourceClaims[0].resourceClaimName", {"resourceClaims": [{"name": "a", "resourceClaimName": "A_"}]}),
    _in_pod(
        "schedulingGates[1].name",
        {"schedulingGates": [{"name": "a"}, {"name": "a"}]},
        says="as is",
        server="spec.schedulingGates[1]",
    ),
    _in_pod("readinessGates[0].conditionType", {"readinessGates": [{"conditionType": ""}]}, says="empty"),
    _in_pod("dnsConfig.searches", {"dnsConfig": {"searches": [f"a{number}" for number in range(33)]}}),
    *(_in_pod("hostAliases[0].ip", {"hostAliases": [{"ip": ip}]}) for ip in ("::ffff:1.2.3.4", "fe80::1%eth0")),
    _in_pod(
        "securityContext.sysctls[0].name", {"securityContext": {"sysctls": [{"name": "", "value": "1"}]}}, says="empty"
    ),
    _in_pod(
        "securityContext.sysctls[1].name",
        {"securityContext": {"sysctls": [{"name": "a", "value": "1"}] * 2}},
        says="as is",
    ),
    _in_pod(
        "securityContext.seccompProfile.localhostProfile",
        {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "/a"}}},
    ),
    _in_container(
        "readinessProbe.httpGet.httpHeaders[0].name",
        {"readinessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b", "value": ""}]}}},
        server="spec.containers[0].readinessProbe.httpGet.httpHeaders",
    ),
    _in_container(
        "lifecycle.preStop.sleep.seconds",
        {"lifecycle": {"preStop": {"sleep": {"seconds": -1}}}},
        server="spec.containers[0].lifecycle.preStop.sleep",
    ),
    _in_pod(
        "resources.limits[nvidia.com/gpu]",
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        says="containers[0].resources",
    ),
    # a pod's own amounts, and units
    *(
        _in_pod(field, pod, server=server)
        for field, pod, server in (
            (
                "resources.requests[cpu]",
                _shared({"requests": {"cpu": 1}}, {"requests": {"cpu": 1}}, {"requests": {"cpu": "500m"}}),
                "",
            ),
            ("resources.requests[cpu]", _shared({"requests": {"cpu": 1}}, {"limits": {"cpu": 2}}), ""),
            (
                "resources.requests[cpu]",
                _shared({"requests": {"cpu": 1}}, {}, **_first({"requests": {"cpu": 2}})),
                "",
            ),
            (
                "resources.requests[cpu]",
                _shared(
                    {"requests": {"cpu": 2}},
                    {"requests": {"cpu": 1}},
                    **_first({"requests": {"cpu": 2}}, restartPolicy="Always"),
                ),
                "",
            ),
            (
                "resources.limits[memory]",
                _shared({"limits": {"memory": "1Gi"}}, *[{"requests": {"memory": "1Gi"}}] * 2),
                "spec.resources.requests",
            ),
            (
                "containers[0].resources.limits[cpu]",
                _shared({"limits": {"cpu": 1}}, {"limits": {"cpu": 2}}),
                "spec.resources.containers[0][cpu].limits",
            ),
            ("overhead[cpu]", {"overhead": {"cpu": "-1"}}, "spec.overhead.limits[cpu]"),
        )
    ),
    *(
        _in_variable(".valueFrom.resourceFieldRef.divisor", _unit(resource, divisor))
        for resource, divisor in (("limits.memory", "3Mi"), ("limits.cpu", "2"), ("limits.memory", 1024))
    ),
    _in_volume(
        ".downwardAPI.items[0].resourceFieldRef.containerName",
        {"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
        says="missing",
        server="spec.volumes[0].downwardAPI.resourceFieldRef.containerName",
    ),
    *(
        _in_variable(
            ".valueFrom.fieldRef.fieldPath",
            {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}},
            server="spec.containers[0].env[0].valueFrom.fieldRef",
        )
        for field in ("labels['bad key!']", "labels['A.B/c']", "annotations['bad key!']")
    ),
    # what a pod has of its node
    *(
        _in_pod(
            f"{containers}[{number}].ports[{port}].containerPort",
            {"hostNetwork": True, **pod},
            says="as is",
            server=f"spec.{containers}[{number}].ports[{port}].hostPort",
        )
        for containers, number, port, pod in (
            (
                "containers",
                0,
                1,
                {"containers": [{"name": "a", "image": "a", "command": ["a"], "ports": _PORTS["ports"] * 2}]},
            ),
            (
                "containers",
                1,
                0,
                {
                    "containers": [
                        {"name": "a", "image": "a", "command": ["a"], **_PORTS},
                        {"name": "b", "image": "a", **_PORTS},
                    ]
                },
            ),
            ("initContainers", 0, 1, _sidecar(ports=_PORTS["ports"] * 2)),
        )
    ),
    *(
        _in_pod("securityContext.sysctls[0].name", _set(name, **{field: True}), says=f"with {field}")
        for name, field in (
            ("net.core.somaxconn", "hostNetwork"),
            ("net/core/somaxconn", "hostNetwork"),
            ("kernel.shmmax", "hostIPC"),
            ("kernel.sem", "hostIPC"),
            ("fs.mqueue.a", "hostIPC"),
        )
    ),
    *(
        _in_pod("hostnameOverride", {"hostnameOverride": "a", field: True}, says=f"in addition to {field}")
        for field in ("hostNetwork", "setHostnameAsFQDN")
    ),
    _in_pod("hostnameOverride", {"hostnameOverride": "a" * 65}, says="at most 64"),
    *(
        case("securityContext.procMount", {"securityContext": {"procMount": "Unmasked"}})
        for case in (_in_container, lambda field, one: _in_pod(f"initContainers[0].{field}", _sidecar(**one)))
    ),
    # devices, profiles, restarts and keys
    _in_container("volumeDevices[0].name", {"volumeDevices": _DEVICES}, _DATA),
    _in_container(
        "volumeDevices[0].name",
        {"volumeDevices": _DEVICES, "volumeMounts": [{"name": "data", "mountPath": "/a"}]},
        _DISK,
    ),
    _in_container(
        "volumeDevices[0].devicePath",
        {"volumeDevices": _DEVICES, "volumeMounts": [{"name": "other", "mountPath": "/dev/a"}]},
        {"volumes": [*_DISK["volumes"], {"name": "other", "emptyDir": {}}]},
        says="as is",
    ),
    *(
        _in_container(
            "securityContext.appArmorProfile.localhostProfile",
            {"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": name}}},
        )
        for name in (" ", " a", "a ")
    ),
    _in_container("restartPolicy", {**_ruled(), "restartPolicy": None}, says="missing"),
    _in_affinity(
        f"podAffinity.{_TERMS}[0].matchLabelKeys[0]",
        {
            "podAffinity": {
                _TERMS: [
                    {"topologyKey": "z", "labelSelector": {}, "matchLabelKeys": ["a"], "mismatchLabelKeys": ["b", "a"]}
                ]
            }
        },
    ),
]

# The API server accepts them without a warning, and their pods never start: the scheduler, the kubelet or the container
# runtime refuses them.
WRONG += [
    *(_in_pod("dnsConfig.searches[0]", {"dnsConfig": {"searches": [name]}}) for name in ("-x", "a..b", "a/b")),
    # hooks, files and classes
    _in_pod("schedulingGates", {"nodeName": "n1", "schedulingGates": [{"name": "a"}]}, server="spec.nodeName"),
    *(
        _in_container(
            f"lifecycle.{hook}.sleep.seconds",
            {"lifecycle": {hook: {"sleep": {"seconds": seconds}}}},
            pod,
            says="terminationGracePeriodSeconds",
            server=f"spec.containers[0].lifecycle.{hook}.sleep",
        )
        for hook, seconds, pod in (
            ("preStop", 31, {}),
            ("postStart", 6, {"terminationGracePeriodSeconds": 5}),
            ("preStop", 2, {"terminationGracePeriodSeconds": -1}),
        )
    ),
    *(
        _in_container(
            f"env[0].valueFrom.fileKeyRef.{field}",
            {
                "env": [
                    {"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "data", "path": "a", "key": "A"} | file}}
                ]
            },
            _DATA,
            says=says,
        )
        for field, file, says in (
            ("volumeName", {"volumeName": "dara"}, "no such volume; did you mean data?"),
            ("volumeName", {"volumeName": "a.b"}, "letters"),
            ("path", {"path": "../a"}, "a path without"),
            ("path", {"path": ""}, "is empty"),
            ("key", {"key": ""}, "is empty"),
        )
    ),
    _in_pod("priority", {"priority": 5}, says="priorityClassName", answer="integer value of priority (5) must not be"),
    _in_pod(
        "preemptionPolicy",
        {"preemptionPolicy": "Never"},
        says="priorityClassName",
        answer="PreemptionPolicy (Never) must not be",
    ),
    _in_pod("overhead", {"overhead": {"cpu": "1"}}, says="runtimeClassName", answer="Pod Overhead set without"),
    # integers that are too large for their field
    *(
        PodCase(worker(container, pod)["template"], f"spec.{field}", answer=f"number {1 << 31} into Go struct field")
        for field, container, pod in (
            ("containers[0].livenessProbe.periodSeconds", {"livenessProbe": {**_PROBE, "periodSeconds": 1 << 31}}, {}),
            ("priority", {}, {"priority": 1 << 31, "priorityClassName": "a"}),
            (
                "containers[0].restartPolicyRules[0].exitCodes.values[0]",
                _ruled(exitCodes={"operator": "In", "values": [1 << 31]}),
                {},
            ),
        )
    ),
    # names
    _in_container(
        "resources.claims[0].request",
        {"resources": {"claims": [{"name": "gpu", "request": "A b"}]}},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}]},
    ),
    _in_pod("serviceAccount", {"serviceAccount": "-x"}, server="spec.serviceAccountName"),
    *(
        _in_volume(
            f".ephemeral.volumeClaimTemplate.metadata.{field}",
            {
                "ephemeral": {
                    "volumeClaimTemplate": {"metadata": {field: "a"}, **_claim()["ephemeral"]["volumeClaimTemplate"]}
                }
            },
            says="labels and annotations",
        )
        for field in ("namespace", "resourceVersion")
    ),
    _in_variable(".valueFrom.resourceFieldRef.resource", _unit("", "1"), says="is empty"),
    _in_pod("securityContext.sysctls[0].name", _set("a" * 254)),
    _in_affinity(
        f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchFields[0].values",
        {"nodeAffinity": _node_field(key="metadata.name", operator="In", values=[""])},
        server=f"spec.affinity.nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchFields[0].values[0]",
    ),
    _in_container(
        "resizePolicy[0].restartPolicy",
        _resized(restartPolicy=""),
        says="is empty",
        server="spec.containers[0].resizePolicy",
    ),
]
NEVER_STARTS = [
    _in_pod("os.name", {"os": {"name": "windows"}}),
    _in_container("command[0]", {"command": [""]}),
    *(
        _in_container("image", {"image": image})
        for image in (
            "https://ghcr.io/x/worker:1",
            "x/worker:",
            "a b",
            "Worker",
            "x//y",
            "a@sha256:12",
            "a:b:c",
            "-a",
            "a:\u00e9",
        )
    ),
    _in_volume(".image.reference", {"image": {"reference": "oci://a"}}),
    *(_in_volume(".emptyDir.medium", {"emptyDir": {"medium": medium}}) for medium in ("memory", "HugePages-x", "disk")),
    *(
        _in_affinity(
            f"nodeAffinity.{_TERMS}.nodeSelectorTerms[0].matchExpressions[0].values",
            {"nodeAffinity": _expression(key="a", operator=operator, values=[value])},
            says="one integer",
        )
        for operator, value in (("Gt", "a"), ("Lt", "1.5"), ("Gt", ""))
    ),
    _in_container("resources.limits[memory]", _resources(limits={"memory": 8}), says="for example 8Gi"),
    _in_container("resources.limits[memory]", _resources(limits={"memory": 5.0}), says="for example 5Gi"),
    _in_container("resources.limits[memory]", _resources(limits={"memory": "512"}), says="for example 512Mi"),
    _in_pod("securityContext.runAsUser", {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}),
    _in_container("securityContext.runAsUser", {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}),
    _in_container(
        "securityContext.runAsUser", {"securityContext": {"runAsUser": 0}}, {"securityContext": {"runAsNonRoot": True}}
    ),
]

# Fields at the wrong level, and fields with the name that they have elsewhere.
MISPLACED = [
    _in_container("securityContext.fsGroup", {"securityContext": {"fsGroup": 1}}, says="in the pod's securityContext"),
    *(
        _in_container(field, {field: value}, says="in the pod's spec")
        for field, value in (("nodeSelector", {}), ("tolerations", []), ("hostNetwork", True))
    ),
    *(
        _in_pod(field, {field: value}, says="in containers[0]")
        for field, value in (("env", []), ("image", "a"), ("command", ["a"]), ("ports", []), ("volumeMounts", []))
    ),
    _in_pod("securityContext.privileged", {"securityContext": {"privileged": True}}, says="of containers[0]"),
    PodCase({**worker()["template"], "volumes": []}, "volumes", "in the template's spec"),
    *(
        _in_container(f"resources.{name}", {"resources": {name: 1}}, says="below limits")
        for name in ("cpu", "memory", "nvidia.com/gpu")
    ),
    _in_volume(".secret.name", {"secret": {"name": "a", "secretName": "a"}}, says="did you mean secretName?"),
    _in_volume(
        ".persistentVolumeClaim.name",
        {"persistentVolumeClaim": {"name": "a", "claimName": "a"}},
        says="did you mean claimName?",
    ),
]

# Names of images at the limits of the grammar.
_IMAGES = (
    *("a", "Host/a", "localhost:5000/a/b", "a.b-c/d__e/f--g.h:Tag_1.2-3", "[::1]:5000/a", f"a@sha256:{'0' * 64}"),
    *(f"a:b@sha256:{'f' * 64}", f"a:{'b' * 128}"),
)

# Each is one step from a case above, or looks wrong and is right.
RIGHT = [
    PodCase(worker(container, pod)["template"])
    for container, pod in (
        ({"name": "a" * 63}, {}),
        ({"ports": [{"containerPort": 65535, "hostPort": 0, "name": "a-name-of-15-ch"}]}, {}),
        ({"ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}, {}),
        ({"ports": [{"containerPort": 80, "hostPort": 80}]}, {"hostNetwork": True}),
        ({"env": [{"name": "1 2", "value": "x"}, {"name": "A-B", "value": "x"}]}, {}),
        ({"env": [{"name": "A", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}]}, {}),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}}}]}, {}),
        ({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.hugepages-2Mi"}}}]}, {}),
        ({"envFrom": [{"prefix": "a-", "configMapRef": {"name": "b"}}]}, {}),
        (_resources(requests={"memory": "1Gi", "cpu": "1"}, limits={"memory": "1024Mi", "cpu": "1000m"}), {}),
        (_resources(limits={"memory": "1e7", "cpu": "0.0001", "a.io/b": "2"}), {}),
        (_resources(requests={"nvidia.com/gpu": 1}, limits={"nvidia.com/gpu": "1"}), {}),
        (_resources(limits={"memory": 5e6}, requests={"memory": 5.0}), {}),
        (_resources(limits={"memory": "1Mi"}), {}),
        (_resources(limits={"memory": 0}), {}),
        (
            {"resources": {"claims": [{"name": "gpu", "request": "one"}]}},
            {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a"}]},
        ),
        ({"readinessProbe": {**_PROBE, "periodSeconds": 0, "successThreshold": 3}}, {}),
        ({"livenessProbe": {"httpGet": {"port": "http"}, "successThreshold": 0}}, {}),
        ({"lifecycle": {"postStart": {"sleep": {"seconds": 0}}, "preStop": _PROBE}}, {}),
        ({"terminationMessagePath": "a", "workingDir": "b", "restartPolicy": "Never"}, {}),
        ({"securityContext": {"runAsUser": (1 << 31) - 1, "seccompProfile": {"type": "RuntimeDefault"}}}, {}),
        ({"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"]}}}, {}),
        ({"volumeMounts": [{"name": "data", "mountPath": "a", "subPath": "b/..c"}]}, _DATA),
        ({"imagePullPolicy": "", "terminationMessagePolicy": ""}, {"dnsPolicy": "", "nodeName": ""}),
        ({}, {"volumes": [{"name": "a"}, {"name": "b", "projected": {"sources": [{}]}}]}),
        *(({}, {"volumes": [{"name": "a", kind: source}]}) for kind, source in _DISKS.items()),
        (
            {},
            {"volumes": [{"name": "a", "projected": {"sources": [_files("secret", "a"), _files("configMap", "a/b")]}}]},
        ),
        (
            {"resources": {"claims": [{"name": "gpu", "request": "one"}, {"name": "gpu", "request": "two"}]}},
            {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}]},
        ),
        (_ON_WINDOWS, {}),
        ({}, {"os": {"name": "linux"}}),
        ({}, {"volumes": [{"name": "a", "secret": {"secretName": "A_B", "defaultMode": 511}}]}),
        ({}, {"volumes": [{"name": "a", "hostPath": {"path": "relative", "type": ""}}]}),
        *(({"image": image}, {}) for image in _IMAGES),
        *(
            ({}, {"volumes": [{"name": "a", "emptyDir": {"medium": medium}}]})
            for medium in ("", "Memory", "HugePages-2Mi")
        ),
        *(({}, {"volumes": [{"name": "a", **_claim(**fields)}]}) for fields in ({}, {"storageClassName": ""})),
        ({}, {"volumes": [{"name": "a", **_projected("serviceAccountToken", path="a", expirationSeconds=600)}]}),
        ({}, {"os": {"name": "linux"}, "securityContext": {"runAsNonRoot": True, "runAsUser": 1}}),
        ({"securityContext": {"runAsUser": 1}}, {"securityContext": {"runAsNonRoot": True}}),
        ({"securityContext": {"runAsNonRoot": False}}, {"securityContext": {"runAsNonRoot": True, "runAsUser": 1}}),
        ({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}, {}),
        ({"volumeMounts": [{"name": "data", "mountPath": "/a", "recursiveReadOnly": "Disabled"}]}, _DATA),
        ({}, {"affinity": {"nodeAffinity": _expression(key="a", operator="Gt", values=["007"])}}),
        ({}, {"affinity": {"nodeAffinity": _node_field(key="metadata.name", operator="NotIn", values=["a"])}}),
        (
            {},
            {
                "affinity": {
                    "podAffinity": {_TERMS: [{"topologyKey": "z", "labelSelector": {}, "matchLabelKeys": ["a"]}]}
                }
            },
        ),
        ({}, {"tolerations": [{"operator": "Exists"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": -1}]}),
        ({}, {"nodeSelector": {"example.com/disk": ""}, "terminationGracePeriodSeconds": -1, "schedulerName": "A B"}),
        ({}, {"dnsConfig": {"nameservers": ["fd00::1"], "searches": ["_a.b"], "options": [{"name": "ndots"}]}}),
        ({}, {"hostAliases": [{"ip": "::1", "hostnames": ["a.b"]}], "priority": 0, "imagePullSecrets": []}),
        ({}, _sidecar(livenessProbe=_PROBE, lifecycle={"preStop": _PROBE})),
        ({}, _shared({"requests": {"cpu": 2}}, *[{"requests": {"cpu": 1}}] * 2)),
        ({}, _shared({"limits": {"cpu": 1}}, *[{"requests": {"cpu": "500m"}, "limits": {"cpu": 1}}] * 2)),
        ({}, _shared({"limits": {"cpu": 1}}, {}, **_first({"requests": {"cpu": 1}, "limits": {"cpu": 2}}))),
        *(
            ({"env": [{"name": "A", **_unit(f"limits.{resource}", divisor)}]}, {})
            for resource, divisor in (
                *(("cpu", "1m"), ("cpu", 1), ("cpu", "0"), ("memory", "1Ki"), ("memory", "1k"), ("memory", "1024Ki")),
                *(("memory", 0), ("ephemeral-storage", "1Ei"), ("hugepages-2Mi", "1Mi")),
            )
        ),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['A.B/c']"}}}]}, {}),
        ({**_PORTS}, {"hostNetwork": True, **_sidecar(**_PORTS)}),
        *(({}, _set(name, hostIPC=True)) for name in ("net.core.somaxconn", "kernel.sempre")),
        ({}, _set("kernel.shmmax", hostNetwork=True)),
        ({"securityContext": {"procMount": "Unmasked"}}, {"hostUsers": False}),
        ({"volumeDevices": _DEVICES}, _DISK),
        ({"volumeDevices": _DEVICES}, {"volumes": [{"name": "data", **_claim()}]}),
        ({**_ruled(), "restartPolicy": "Always"}, {}),
        ({"lifecycle": {"stopSignal": "SIGUSR1"}}, {}),
        ({}, {"volumes": [{"name": "a", **_TOKENS}]}),
        ({}, {"volumes": [{"name": "a", "projected": {"sources": [{"secret": None}]}}]}),
        ({}, {"hostname": None, "subdomain": ""}),
        ({}, {"hostname": "", "subdomain": None}),
        (
            {},
            {
                "topologySpreadConstraints": [
                    {**_SPREAD, "matchLabelKeys": ["a"], "labelSelector": {"matchLabels": {"a": "b"}}}
                ]
            },
        ),
        ({}, {"topologySpreadConstraints": [{**_SPREAD, "topologyKey": "z z", "minDomains": 1, "labelSelector": {}}]}),
    )
] + [
    PodCase({**worker()["template"], "metadata": metadata})
    for metadata in (
        {"labels": {"a": "", "example.com/b": "B_c.d-e", "c": "a" * 63}},
        {"annotations": {"A.Domain/key": "any value\n", "empty": ""}},
    )
]
