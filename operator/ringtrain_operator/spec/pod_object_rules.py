"""Rules for several fields of one object in a pod template, as in k8s.io/kubernetes, pkg/apis/core/validation."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ..errors import shown
from .labels import is_domain, is_qualified_name
from .pod_rules import Found, given_twice, items_of, quantity_value

# Container runtimes refuse to start a container with less memory than some MiB.
_LEAST_MEMORY = 1 << 20
_ROOT_USER = "is 0, the user root; expected another user, as runAsNonRoot is true"
_CONTAINERS = ("initContainers", "containers")
_OF_IPC = re.compile(r"kernel\.(shm|msg|sem$)|fs\.mqueue\.")
_BYTES = ("memory", "ephemeral-storage", "hugepages-")


def amount_problems(amounts: Mapping[str, Any]) -> Found:
    """Yield what is wrong with each of the amounts, by name, that a container or a pod requests or may use."""
    return ((f"[{name}]", said) for name, amount in amounts.items() for said in _amount_problems(str(name), amount))


def resource_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of a container's requests and limits, alone and compared with each other."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for kind, amounts in (("requests", requests), ("limits", limits)):
        yield from ((f".{kind}{path}", said) for path, said in amount_problems(amounts))
    memory = quantity_value(limits.get("memory"))
    if memory is not None and 0 < memory < _LEAST_MEMORY and _is_whole(memory):
        unit = "Gi" if memory < 256 else "Mi"
        example = f"{memory:f}".partition(".")[0] if memory < _LEAST_MEMORY >> 4 else "512"
        found = f"is {limits['memory']}, which is {memory:f} bytes"
        yield ".limits[memory]", f"{found}; expected at least 1Mi, for example {example}{unit}"
    for name, amount in requests.items():
        limit, fixed = limits.get(name), "/" in name or name.startswith("hugepages-")
        asked, most = quantity_value(amount), quantity_value(limit)
        if limit is None and fixed:
            yield f".limits[{name}]", f"is missing; expected {amount}, as requests has, which cannot be overcommitted"
        elif most is not None and asked is not None and (asked != most if fixed else asked > most):
            yield f".requests[{name}]", f"is {amount}; expected {'' if fixed else 'at most '}{limit}, as limits has"
    names = {*requests, *limits}
    if any(name.startswith("hugepages-") for name in names) and not names & {"cpu", "memory"}:
        yield "", f"has {', '.join(sorted(names))} alone; expected cpu or memory beside huge pages"


def _amount_problems(name: str, amount: object) -> Iterator[str]:
    """Yield what is wrong with one amount in a container's requests or limits."""
    if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage") and not name.startswith("hugepages-"):
        yield (
            f"is {shown(amount)} of {name!r}; expected cpu, memory, ephemeral-storage, hugepages-SIZE or a device's "
            "name with a domain, for example nvidia.com/gpu"
        )
    elif "/" in name and (not is_qualified_name(name) or name.startswith("requests.")):
        yield f"is {shown(amount)} of {name!r}; expected a device's name with a domain, for example nvidia.com/gpu"
    value = quantity_value(amount)
    if value is None:
        return
    if value < 0:
        yield f"is {amount}; expected at least 0"
    elif not _is_whole(value) and "/" in name:
        yield f"is {amount}; expected a whole number"
    elif not _is_whole(value) and name.startswith(_BYTES):
        yield f"is {amount}, a part of a byte; expected whole bytes, for example 512M or 512Mi"
    elif (page := quantity_value(name.removeprefix("hugepages-"))) and value % page:
        yield f"is {amount}; expected a multiple of the page size {name.removeprefix('hugepages-')}"


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()


def expression_problems(expression: Mapping[str, Any]) -> Found:
    """Yield a problem if a selector's operator, such as In or Exists, has the wrong number of values."""
    operator, values = expression.get("operator"), expression.get("values") or []
    if operator in ("In", "NotIn") and not values:
        yield ".values", f"is empty; expected at least one value for operator {operator}"
    elif operator in ("Exists", "DoesNotExist") and values:
        yield ".values", f"is {shown(values)}; expected none for operator {operator}"
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not re.fullmatch(r"\d{1,18}", str(values[0]), re.ASCII)):
        yield ".values", f"is {shown(values)}; expected one integer in quotes for operator {operator}"


def node_field_problems(expression: Mapping[str, Any]) -> Found:
    """Yield problems of an expression about a node's field. Kubernetes knows only the field metadata.name."""
    key, operator, values = expression.get("key"), expression.get("operator"), expression.get("values") or []
    if key != "metadata.name":
        yield ".key", f"is {shown(key)}; expected metadata.name, or matchExpressions for labels"
    elif operator not in ("In", "NotIn"):
        yield ".operator", f"is {shown(operator)}; expected In or NotIn for a node's field"
    elif len(values) != 1 or not is_domain(values[0]):
        yield ".values", f"is {shown(values)}; expected one name of a node"


def toleration_problems(one: Mapping[str, Any]) -> Found:
    """Yield problems of a toleration whose fields contradict each other."""
    operator = one.get("operator") or "Equal"
    if operator != "Exists" and not one.get("key"):
        yield ".operator", f"is {shown(one.get('operator'))}; expected Exists where key is empty"
    elif operator == "Exists" and one.get("value"):
        yield ".value", f"is {shown(one['value'])}; expected none with operator Exists"
    if one.get("tolerationSeconds") is not None and one.get("effect") != "NoExecute":
        yield ".effect", f"is {shown(one.get('effect'))}; expected NoExecute with tolerationSeconds"


def profile_problems(profile: Mapping[str, Any]) -> Found:
    """Yield problems with the file that a seccomp or AppArmor profile names."""
    kind, file = profile.get("type"), profile.get("localhostProfile")
    if kind == "Localhost" and not file:
        yield ".localhostProfile", "is missing; expected the profile's file, as type is Localhost"
    elif kind != "Localhost" and file is not None:
        yield ".localhostProfile", f"is {shown(file)}; expected none, as type is {kind}"


def escalation_problems(context: Mapping[str, Any]) -> Found:
    """Yield problems of a security context that denies privilege escalation but grants such rights."""
    if context.get("allowPrivilegeEscalation") is False:
        added = (context.get("capabilities") or {}).get("add") or ()
        if context.get("privileged") or "CAP_SYS_ADMIN" in added:
            found = "privileged is true" if context.get("privileged") else "capabilities.add has CAP_SYS_ADMIN"
            yield ".allowPrivilegeEscalation", f"is false; expected true or none, as {found}"


def host_port_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of node ports that two containers request, or that hostNetwork does not permit.

    With hostNetwork each port of a container is one of the node. Init containers run one after another.
    """
    on_node = pod.get("hostNetwork")
    for together in (items_of(pod, "containers"), *([one] for one in items_of(pod, "initContainers"))):
        given = []
        for path, port in ((path + below, port) for path, one in together for below, port in items_of(one, "ports")):
            number, inner = port.get("hostPort"), port.get("containerPort")
            if number and on_node and number != inner and path.startswith(".containers"):
                yield f"{path}.hostPort", f"is {number}; expected {inner}, its containerPort, with hostNetwork"
            protocol = (port.get("protocol") or "TCP", port.get("hostIP") or "")
            field, used = ("hostPort", number) if number else ("containerPort", inner if on_node else None)
            given.append((f"{path}.{field}", f"{used}/{'/'.join(protocol).rstrip('/')}" if used else None))
        yield from given_twice(given)


def dns_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem if dnsPolicy is None and dnsConfig has no DNS server."""
    if pod.get("dnsPolicy") == "None" and not (pod.get("dnsConfig") or {}).get("nameservers"):
        yield ".dnsConfig.nameservers", "is missing; expected at least one address, as dnsPolicy is 'None'"


def init_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of init containers with probes or hooks, which only sidecars may have."""
    for path, container in items_of(pod, "initContainers"):
        for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(field) and container.get("restartPolicy") != "Always":
                yield f"{path}.{field}", "is given; expected none without restartPolicy: Always"


def class_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of fields that Kubernetes sets by the pod's class of priority or runtime."""
    fields = {"priority": "priorityClassName", "preemptionPolicy": "priorityClassName", "overhead": "runtimeClassName"}
    for field, name in fields.items():
        if pod.get(field) not in (None, 0, {}, "", "PreemptLowerPriority") and not pod.get(name):
            yield f".{field}", f"is {shown(pod[field])}; expected none: Kubernetes sets it by {name}"


def hook_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of hooks that sleep for longer than the pod's grace period."""
    grace = pod.get("terminationGracePeriodSeconds")
    most, given = (30, "by default") if grace is None else (max(1, grace), "")
    for path, container in items_of(pod, *_CONTAINERS):
        lifecycle = container.get("lifecycle") or {}
        for hook in ("postStart", "preStop"):
            if (seconds := ((lifecycle.get(hook) or {}).get("sleep") or {}).get("seconds") or 0) > most:
                said = f"is {seconds}; expected at most {most}, as terminationGracePeriodSeconds is {given}".rstrip()
                yield f"{path}.lifecycle.{hook}.sleep.seconds", said


def propagation_problems(container: Mapping[str, Any]) -> Found:
    """Yield problems of mounts that only a privileged container may propagate to the node."""
    privileged = (container.get("securityContext") or {}).get("privileged")
    for path, mount in () if privileged else items_of(container, "volumeMounts"):
        if mount.get("mountPropagation") == "Bidirectional":
            said = "is 'Bidirectional'; expected None or HostToContainer in a container that is not privileged"
            yield f"{path}.mountPropagation", said


def device_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of block devices from volumes that a container also mounts, or that can be no device."""
    blocks = ("persistentVolumeClaim", "ephemeral")
    others = {v.get("name") for v in pod.get("volumes") or () if not any(v.get(kind) for kind in blocks)}
    for path, container in items_of(pod, *_CONTAINERS):
        mounted = {mount.get("name") for _, mount in items_of(container, "volumeMounts")}
        for below, device in items_of(container, "volumeDevices"):
            where, name = f"{path}{below}.name", device.get("name")
            if name in others:
                yield where, f"is {shown(name)}; expected a volume of a persistentVolumeClaim or ephemeral"
            elif name in mounted:
                yield where, f"is {shown(name)}, which volumeMounts has, too; expected it in one of them"


def divisor_problems(one: Mapping[str, Any]) -> Found:
    """Yield a problem if the unit in which a variable or a file has a resource's amount is none that Kubernetes has."""
    value, is_cpu = quantity_value(one.get("divisor")), str(one.get("resource")).endswith(".cpu")
    base = 1024 if str(one.get("divisor")).endswith("i") else 1000
    units = {Decimal(1), Decimal("0.001")} if is_cpu else {Decimal(base**power) for power in range(7)}
    if value and value not in units:
        yield ".divisor", f"is {one['divisor']}; expected {'1 or 1m' if is_cpu else '1, or a unit such as 1M or 1Mi'}"


def label_key_problems(term: Mapping[str, Any]) -> Found:
    """Yield problems of keys whose labels must both match and differ."""
    for index, key in enumerate(term.get("matchLabelKeys") or ()):
        if key in (term.get("mismatchLabelKeys") or ()):
            yield f".matchLabelKeys[{index}]", f"is {shown(key)}, as in mismatchLabelKeys; expected it in one of them"


def first_word_problems(container: Mapping[str, Any]) -> Found:
    """Yield a problem if the program in a container's command is an empty text."""
    command = container.get("command")
    if command and not str(command[0]).strip():
        yield ".command[0]", f"is {shown(command[0])}; expected a program, for example python"


def claim_problems(claim: Mapping[str, Any]) -> Found:
    """Yield problems of a volume's claim: access modes that exclude each other, no size, an unknown data source."""
    modes = claim.get("accessModes") or []
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        yield ".accessModes", f"is {shown(modes)}; expected ReadWriteOncePod without other modes"
    size = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        yield ".resources.requests[storage]", "is missing; expected the volume's size, for example 10Gi"
    elif (quantity_value(size) or 0) <= 0:
        yield ".resources.requests[storage]", f"is {size}; expected more than 0"
    for field in ("dataSource", "dataSourceRef"):
        source = claim.get(field) or {}
        if source and not source.get("apiGroup") and source.get("kind") != "PersistentVolumeClaim":
            yield f".{field}", f"has kind {source.get('kind')}; expected PersistentVolumeClaim, or an apiGroup"


def root_user_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem for each container that must not run as root but has user 0, which the kubelet never starts."""
    common = pod.get("securityContext") or {}
    if common.get("runAsNonRoot") and common.get("runAsUser") == 0:
        yield ".securityContext.runAsUser", _ROOT_USER
        return
    for path, container in items_of(pod, *_CONTAINERS):
        own = {k: v for k, v in (container.get("securityContext") or {}).items() if v is not None}
        both = {**common, **own}
        if both.get("runAsNonRoot") and both.get("runAsUser") == 0:
            yield f"{path if 'runAsUser' in own else ''}.securityContext.runAsUser", _ROOT_USER


def proc_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem for each container that sees all of /proc although its users are the node's."""
    for path, container in items_of(pod, *_CONTAINERS) if pod.get("hostUsers") is not False else ():
        if (container.get("securityContext") or {}).get("procMount") == "Unmasked":
            yield f"{path}.securityContext.procMount", "is 'Unmasked'; expected Default without hostUsers: false"


def sysctl_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of sysctls that would change the node, as the pod has the node's network or IPC."""
    for path, sysctl in items_of(pod.get("securityContext") or {}, "sysctls"):
        name = str(sysctl.get("name")).replace("/", ".")
        field = "hostNetwork" if name.startswith("net.") else "hostIPC" if _OF_IPC.match(name) else ""
        if pod.get(field):
            yield f".securityContext{path}.name", f"is {shown(sysctl['name'])}; expected none with {field}: true"


def windows_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem for each securityContext with options of Windows in a pod whose os is linux."""
    is_linux = (pod.get("os") or {}).get("name") == "linux"
    for path, owner in [("", pod), *items_of(pod, *_CONTAINERS)] if is_linux else ():
        if (owner.get("securityContext") or {}).get("windowsOptions"):
            yield f"{path}.securityContext.windowsOptions", "is set; expected none, as os.name is linux"


def projected_path_problems(volume: Mapping[str, Any]) -> Found:
    """Yield problems of files in a projected volume whose path an earlier file has."""
    sources = [(f"{path}.{kind}", source) for path, one in items_of(volume, "sources") for kind, source in one.items()]
    files = ((path + below, file) for path, source in sources for below, file in items_of(source or {}, "items"))
    return given_twice((f"{path}.path", file.get("path")) for path, file in files)


def claim_name_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of resource claims that a container names twice."""
    claims = items_of(resources, "claims")
    return given_twice((f"{path}.name", f"{c['name']}/{c.get('request') or ''}".rstrip("/")) for path, c in claims)


def azure_disk_problems(volume: Mapping[str, Any]) -> Found:
    """Yield a problem if the URI of an Azure disk is not one of its kind."""
    begin = "/subscriptions" if volume.get("kind") == "Managed" else "https://"
    if not str(volume["diskURI"]).startswith(begin):
        yield (
            ".diskURI",
            f"is {shown(volume['diskURI'])}; expected {begin}…, as kind is {volume.get('kind') or 'Shared'}",
        )


def spread_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of spread constraints that an earlier one with the same topology and effect repeats."""
    constraints = items_of(pod, "topologySpreadConstraints")
    return given_twice((path, f"{one.get('topologyKey')}, {one.get('whenUnsatisfiable')}") for path, one in constraints)


def pod_resource_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of resources of a whole pod, which can be only cpu, memory and huge pages."""
    if resources.get("claims") is not None:
        yield ".claims", f"is {shown(resources['claims'])}; expected them in containers[0].resources"
    for kind in ("requests", "limits"):
        for name, amount in (resources.get(kind) or {}).items():
            if name not in ("cpu", "memory") and not str(name).startswith("hugepages-"):
                yield f".{kind}[{name}]", f"is {shown(amount)}; expected it in containers[0].resources"


def pod_amount_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of a pod's own requests and limits that are smaller than those of its containers."""
    own = pod.get("resources") or {}
    limits, requests = own.get("limits") or {}, own.get("requests") or {}
    for name, least in {**limits, **requests}.items():
        most, bound, asked = quantity_value(limits.get(name)), quantity_value(least), _requested(pod, name)
        amounts = [
            (path, ((container.get("resources") or {}).get("limits") or {}).get(name))
            for path, container in items_of(pod, "containers")
        ]
        above = [one for one in amounts if most is not None and (quantity_value(one[1]) or 0) > most]
        for path, amount in above:
            yield f"{path}.resources.limits[{name}]", f"is {amount}; expected at most {limits[name]}, as the pod has"
        if not above and bound is not None and asked > bound:
            expected = f"expected at least {asked.normalize():f}, which its containers request together"
            yield f".resources.{'requests' if name in requests else 'limits'}[{name}]", f"is {least}; {expected}"


def _requested(pod: Mapping[str, Any], name: str) -> Decimal:
    """Return what the pod's containers request of a resource together. Sidecars run beside the containers."""
    beside = most = Decimal(0)
    for path, container in items_of(pod, *_CONTAINERS):
        resources = container.get("resources") or {}
        given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        amount = quantity_value(given.get(name)) or Decimal(0)
        most = max(most, beside + amount)
        if path.startswith(".containers") or container.get("restartPolicy") == "Always":
            beside += amount
    return max(most, beside)
