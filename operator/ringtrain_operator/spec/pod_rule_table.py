"""Rules for the values in pod templates that Kubernetes' schema does not express (pkg/apis/core/validation).

`POD_RULES` has them by the schema's definitions: those of single fields, and those over several fields of an object.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from . import pod_object_rules as objects
from .labels import LABEL_VALUE, annotation_problems, is_domain, is_label_value, is_qualified_name, label_problems
from .pod_rules import (
    PodRule,
    at_most_one_besides,
    choice,
    different,
    each,
    in_field,
    matching,
    needs,
    needs_if,
    no_field,
    not_both,
    number,
    one_of,
    only,
    quantity_value,
    text,
)


def _is_address(value: str) -> bool:
    try:
        address = ip_address(value)
    except ValueError:
        return False
    return "%" not in value and getattr(address, "ipv4_mapped", None) is None


def _has_no_up(path: str) -> bool:
    return bool(path) and ".." not in path.split("/")


def _may_write(mount: Mapping[str, object]) -> bool:
    return mount.get("recursiveReadOnly") != "Disabled" and not mount.get("readOnly")


def _is_port_or_name(value: int | str) -> bool:
    return 1 <= value <= 65535 if isinstance(value, int) else not list(_PORT_NAME(value))


@dataclass(frozen=True)
class DefinitionRules:
    """Rules for one type of object in a pod. `fields`: rule of each field, by name. `objects`: rules for the object."""

    fields: Mapping[str, PodRule]
    objects: tuple[PodRule, ...] = ()


NO_RULES = DefinitionRules({})


def _rules(*rules: PodRule, **fields: PodRule) -> DefinitionRules:
    return DefinitionRules(fields, rules)


_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_KEY_NAME = "[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_SEARCHED = f"_?{_NAME.replace('[-', '[-_')}"
_FIELD = (
    rf"metadata\.(name|namespace|uid|labels\['([a-z0-9][-.a-z0-9]*/)?{_KEY_NAME}'\]"
    rf"|annotations\['([A-Za-z0-9][-.A-Za-z0-9]*/)?{_KEY_NAME}'\])"
)
_LABEL = matching(rf"(?=.{{1,63}}$){_NAME}", "at most 63 lower-case letters, digits and '-' (not at the ends)")
_DOMAIN = text(is_domain, "lower-case letters, digits, '-' and '.' (not at the ends)")
_KEY = text(is_qualified_name, "a name of letters, digits, '-', '_' and '.', perhaps after a domain and '/'")
_DATA_KEY = matching(r"(?!\.{1,2}$)[-._a-zA-Z0-9]{1,253}", "letters, digits, '-', '_' and '.'")
_PORT, _USER, _LUN = number(1, 65535), number(0, (1 << 31) - 1), number(0, 255)
_PORT_NAME = matching(
    rf"(?=.{{1,15}}$)(?=.*[a-z])(?!.*--){_NAME}", "at most 15 lower-case letters, digits and '-', one a letter"
)
_PORT_OR_NAME = text(_is_port_or_name, "an integer from 1 to 65535 or a port's name")
_ADDRESS = text(_is_address, "an IP address, for example 10.0.0.1")
_TARGET = text(
    lambda path: _has_no_up(path) and path[0] != "/" and path[:2] != "..",
    "a relative path that does not begin with '..'",
)
_RELATIVE = text(lambda path: _has_no_up(path) and path[0] != "/", "a relative path without '..'")
_MODE = text(lambda mode: 0 <= mode <= 0o777, "file permissions from 0 to 0777 (511 in decimal)")
_TRIMMED = text(lambda name: name == name.strip(), "a name without blanks at its ends")
_LABEL_VALUE = text(is_label_value, LABEL_VALUE)
# Grammar of github.com/distribution/reference, with which the kubelet reads images.
_DOMAIN_PART, _PATH_PART = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?", "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = matching(
    rf"(({_DOMAIN_PART}(\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(:[0-9]+)?/)?{_PATH_PART}(/{_PATH_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    "an image such as ghcr.io/team/worker:1, in lower case and without https://",
)
_MEDIUM = matching(
    r"Memory|HugePages(-[0-9]+[KMGT]i)?", "Memory, HugePages or HugePages-SIZE, for example HugePages-2Mi"
)
_HANDLERS = ("exec", "httpGet", "tcpSocket")
_VARIABLES = "printable ASCII characters other than '='"

POD_RULES: Mapping[str, DefinitionRules] = {
    **dict.fromkeys(
        ("LocalObjectReference", "ConfigMapProjection", "SecretProjection", "PodDNSConfigOption"), _rules(needs("name"))
    ),
    "ObjectMeta": _rules(labels=label_problems, annotations=annotation_problems, finalizers=each(_KEY)),
    "OwnerReference": _rules(needs("apiVersion", "kind", "name", "uid")),
    "PodSpec": _rules(
        different("volumes.name"),
        different("resourceClaims.name"),
        different("initContainers.name", "containers.name"),
        objects.host_port_problems,
        objects.init_problems,
        objects.device_problems,
        objects.dns_problems,
        objects.proc_problems,
        objects.sysctl_problems,
        objects.pod_amount_problems,
        objects.root_user_problems,
        objects.windows_problems,
        objects.hook_problems,
        objects.spread_problems,
        different("schedulingGates.name"),
        not_both("nodeName", "schedulingGates"),
        in_field("resources", objects.pod_resource_problems),
        no_field("ephemeralContainers", "in a pod template", lambda pod: True),
        objects.class_problems,
        not_both("hostPID", "shareProcessNamespace"),
        *(
            no_field(field, "with hostUsers: false", lambda pod: pod.get("hostUsers") is False)
            for field in ("hostNetwork", "hostPID", "hostIPC")
        ),
        not_both("hostNetwork", "hostnameOverride"),
        not_both("setHostnameAsFQDN", "hostnameOverride"),
        activeDeadlineSeconds=number(1, (1 << 31) - 1),
        overhead=objects.amount_problems,
        hostnameOverride=text(lambda name: is_domain(name) and len(name) <= 64, "a host name of at most 64 characters"),
        nodeName=_DOMAIN,
        nodeSelector=label_problems,
        priorityClassName=_DOMAIN,
        runtimeClassName=_DOMAIN,
        serviceAccount=_DOMAIN,
        serviceAccountName=_DOMAIN,
    ),
    "Container": _rules(
        needs("name", "image"),
        different("ports.name"),
        different("volumeMounts.mountPath", "volumeDevices.devicePath"),
        needs_if("restartPolicy", "with restartPolicyRules", lambda container: container.get("restartPolicyRules")),
        in_field("livenessProbe.successThreshold", number(0, 1)),
        in_field("startupProbe.successThreshold", number(0, 1)),
        in_field("readinessProbe", no_field("terminationGracePeriodSeconds", "in a readinessProbe", lambda _: True)),
        objects.propagation_problems,
        objects.first_word_problems,
        different("resizePolicy.resourceName"),
        name=_LABEL,
        image=_IMAGE,
        restartPolicy=choice("Always", "Never", "OnFailure"),
    ),
    "ContainerResizePolicy": _rules(
        needs("resourceName", "restartPolicy"),
        resourceName=choice("cpu", "memory"),
        restartPolicy=text("NotRequired".__eq__, "NotRequired, as the pod's restartPolicy is Never"),
    ),
    "ContainerRestartRule": _rules(needs("exitCodes"), action=choice("Restart", "RestartAllContainers")),
    "ContainerRestartRuleOnExitCodes": _rules(operator=choice("In", "NotIn")),
    "ContainerPort": _rules(containerPort=_PORT, hostPort=number(0, 65535), name=_PORT_NAME),
    "EnvVar": _rules(
        needs("name"),
        not_both("value", "valueFrom"),
        name=matching("[ -<>-~]+", _VARIABLES),
    ),
    "EnvVarSource": _rules(
        one_of("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"),
        in_field(
            "fieldRef.fieldPath",
            matching(
                rf"{_FIELD}|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)",
                "a field such as metadata.name, metadata.labels['KEY'], spec.nodeName or status.podIP",
            ),
        ),
    ),
    "EnvFromSource": _rules(one_of("configMapRef", "secretRef"), prefix=matching("[ -<>-~]*", _VARIABLES)),
    **dict.fromkeys(("ConfigMapEnvSource", "SecretEnvSource"), _rules(needs("name"), name=_DOMAIN)),
    **dict.fromkeys(
        ("ConfigMapKeySelector", "SecretKeySelector"), _rules(needs("name", "key"), name=_DOMAIN, key=_DATA_KEY)
    ),
    "ResourceFieldSelector": _rules(
        needs("resource"),
        objects.divisor_problems,
        resource=matching(
            r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)", "a resource such as limits.cpu"
        ),
    ),
    "FileKeySelector": _rules(
        needs("volumeName", "key", "path"), path=text(_has_no_up, "a path without '..'"), volumeName=_LABEL
    ),
    "ResourceClaim": _rules(name=_LABEL, request=_LABEL),
    "ObjectFieldSelector": _rules(apiVersion=text("v1".__eq__, "v1")),
    "ResourceRequirements": _rules(objects.resource_problems, objects.claim_name_problems),
    "Volume": _rules(needs("name"), at_most_one_besides("name"), name=_LABEL),
    "VolumeProjection": _rules(at_most_one_besides()),
    "ConfigMapVolumeSource": _rules(needs("name"), defaultMode=_MODE),
    "SecretVolumeSource": _rules(needs("secretName"), defaultMode=_MODE),
    "ProjectedVolumeSource": _rules(objects.projected_path_problems, defaultMode=_MODE),
    "DownwardAPIVolumeSource": _rules(defaultMode=_MODE),
    "DownwardAPIVolumeFile": _rules(
        needs("path"),
        one_of("fieldRef", "resourceFieldRef"),
        in_field("resourceFieldRef", needs("containerName")),
        in_field(
            "fieldRef.fieldPath",
            matching(rf"{_FIELD}|metadata\.(labels|annotations)", "a field of metadata, such as metadata.labels"),
        ),
        path=_TARGET,
        mode=_MODE,
    ),
    "KeyToPath": _rules(needs("key", "path"), path=_TARGET, mode=_MODE),
    "EmptyDirVolumeSource": _rules(
        medium=_MEDIUM, sizeLimit=text(lambda size: (quantity_value(size) or 0) >= 0, "a quantity of at least 0")
    ),
    "HostPathVolumeSource": _rules(path=text(_has_no_up, "a path without '..'")),
    "NFSVolumeSource": _rules(path=matching("/.*", "an absolute path")),
    "CSIVolumeSource": _rules(driver=_DOMAIN),
    "ImageVolumeSource": _rules(needs("reference"), reference=_IMAGE),
    "FCVolumeSource": _rules(
        one_of("targetWWNs", "wwids"),
        needs_if("lun", "with targetWWNs", lambda volume: volume.get("targetWWNs")),
        lun=_LUN,
    ),
    "FlockerVolumeSource": _rules(
        one_of("datasetName", "datasetUUID"), datasetName=matching("[^/]+", "a name without '/'")
    ),
    "ISCSIVolumeSource": _rules(
        needs_if("secretRef", "with CHAP", lambda one: one.get("chapAuthDiscovery") or one.get("chapAuthSession")),
        iqn=matching(r"(iqn|eui|naa)\..+", "a name that begins with iqn., eui. or naa."),
        lun=_LUN,
    ),
    "AzureDiskVolumeSource": _rules(objects.azure_disk_problems),
    "GitRepoVolumeSource": _rules(directory=_RELATIVE),
    "QuobyteVolumeSource": _rules(registry=matching(r"[^:,]+:[^:,]+(,[^:,]+:[^:,]+)*", "HOST:PORT,...")),
    **dict.fromkeys(("GCEPersistentDiskVolumeSource", "AWSElasticBlockStoreVolumeSource"), _rules(partition=_LUN)),
    **dict.fromkeys(("ScaleIOVolumeSource", "StorageOSVolumeSource"), _rules(needs("volumeName"))),
    "ServiceAccountTokenProjection": _rules(needs("path"), path=_TARGET, expirationSeconds=number(600, 1 << 32)),
    "EphemeralVolumeSource": _rules(needs("volumeClaimTemplate")),
    "PersistentVolumeClaimTemplate": _rules(
        in_field("metadata", only("labels", "annotations")),
    ),
    "PersistentVolumeClaimSpec": _rules(
        needs("accessModes"), objects.claim_problems, storageClassName=_DOMAIN, volumeAttributesClassName=_DOMAIN
    ),
    **dict.fromkeys(("TypedLocalObjectReference", "TypedObjectReference"), _rules(needs("kind", "name"))),
    "VolumeMount": _rules(
        needs("name", "mountPath"),
        not_both("subPath", "subPathExpr"),
        no_field("recursiveReadOnly", "without readOnly: true", _may_write),
        subPath=_RELATIVE,
        subPathExpr=_RELATIVE,
        recursiveReadOnly=choice("Disabled", "Enabled", "IfPossible"),
    ),
    "VolumeDevice": _rules(needs("name", "devicePath"), devicePath=text(_has_no_up, "a path without '..'")),
    "Probe": _rules(
        one_of(*_HANDLERS, "grpc"),
        initialDelaySeconds=number(0),
        timeoutSeconds=number(0),
        periodSeconds=number(0),
        successThreshold=number(0),
        failureThreshold=number(0),
        terminationGracePeriodSeconds=number(1),
    ),
    "LifecycleHandler": _rules(one_of(*_HANDLERS, "sleep")),
    "ExecAction": _rules(needs("command")),
    "SleepAction": _rules(seconds=number(0)),
    "HTTPHeader": _rules(needs("name"), name=matching("[-A-Za-z0-9]+", "letters, digits and '-'")),
    **dict.fromkeys(("HTTPGetAction", "TCPSocketAction"), _rules(port=_PORT_OR_NAME)),
    "GRPCAction": _rules(port=_PORT),
    "SecurityContext": _rules(objects.escalation_problems, runAsUser=_USER, runAsGroup=_USER),
    "PodSecurityContext": _rules(
        different("sysctls.name"),
        runAsUser=_USER,
        runAsGroup=_USER,
        fsGroup=_USER,
        supplementalGroups=each(_USER),
        seLinuxChangePolicy=choice("MountOption", "Recursive"),
    ),
    "PodOS": _rules(needs("name"), name=text("linux".__eq__, "linux, the only system on which ranks run")),
    "SeccompProfile": _rules(needs("type"), objects.profile_problems, localhostProfile=_RELATIVE),
    "AppArmorProfile": _rules(needs("type"), objects.profile_problems, localhostProfile=_TRIMMED),
    "Sysctl": _rules(
        needs("name"),
        name=matching(
            rf"(?=.{{1,253}}$)({_NAME.replace('[-', '[-_')}[./])*{_NAME.replace('[-', '[-_')}",
            "a name such as net.core.somaxconn",
        ),
    ),
    "Toleration": _rules(objects.toleration_problems, key=_KEY, value=_LABEL_VALUE, operator=choice("Equal", "Exists")),
    "NodeSelector": _rules(needs("nodeSelectorTerms")),
    "NodeSelectorTerm": _rules(in_field("matchFields", each(objects.node_field_problems))),
    "NodeSelectorRequirement": _rules(
        needs("key", "operator"), objects.expression_problems, key=_KEY, values=each(_LABEL_VALUE)
    ),
    "LabelSelector": _rules(matchLabels=label_problems),
    "LabelSelectorRequirement": _rules(
        needs("key", "operator"),
        objects.expression_problems,
        key=_KEY,
        operator=choice("In", "NotIn", "Exists", "DoesNotExist"),
        values=each(_LABEL_VALUE),
    ),
    **dict.fromkeys(("PreferredSchedulingTerm", "WeightedPodAffinityTerm"), _rules(weight=number(1, 100))),
    "PodAffinityTerm": _rules(
        needs("topologyKey"),
        *(
            no_field(field, "without a labelSelector", lambda one: one.get("labelSelector") is None)
            for field in ("matchLabelKeys", "mismatchLabelKeys")
        ),
        objects.label_key_problems,
        topologyKey=_KEY,
        namespaces=each(_LABEL),
        matchLabelKeys=each(_KEY),
        mismatchLabelKeys=each(_KEY),
    ),
    "TopologySpreadConstraint": _rules(
        needs("topologyKey", "whenUnsatisfiable"),
        no_field("minDomains", "with ScheduleAnyway", lambda one: one.get("whenUnsatisfiable") == "ScheduleAnyway"),
        no_field("matchLabelKeys", "without a labelSelector", lambda one: one.get("labelSelector") is None),
        maxSkew=number(1),
        minDomains=number(1),
        matchLabelKeys=each(_KEY),
    ),
    "PodDNSConfig": _rules(
        in_field("nameservers", text(lambda addresses: len(addresses) < 4, "at most 3 addresses")),
        in_field("searches", text(lambda domains: len(domains) <= 32, "at most 32 domains")),
        nameservers=each(_ADDRESS),
        searches=each(matching(rf"\.|(?=.{{1,253}}$){_SEARCHED}(\.{_SEARCHED})*\.?", "a domain")),
    ),
    "HostAlias": _rules(needs("ip"), ip=_ADDRESS, hostnames=each(_DOMAIN)),
    "PodReadinessGate": _rules(needs("conditionType"), conditionType=_KEY),
    "PodSchedulingGate": _rules(name=_KEY),
    "PodResourceClaim": _rules(
        one_of("resourceClaimName", "resourceClaimTemplateName"),
        name=_LABEL,
        resourceClaimName=_DOMAIN,
        resourceClaimTemplateName=_DOMAIN,
    ),
}
