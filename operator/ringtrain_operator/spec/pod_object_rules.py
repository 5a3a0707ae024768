"""Rules for several fields of one object in a pod template, as in k8s.io/kubernetes, pkg/apis/core/validation."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ..errors import shown
from .labels import is_qualified_name
from .pod_rules import Found, given_twice, quantity_value

# Container runtimes refuse to start a container with less memory than some MiB.
_LEAST_MEMORY = 1 << 20
_ROOT_USER = "is 0, the user root; expected another user, as runAsNonRoot is true"
_CONTAINERS = ("initContainers", "containers")
_BYTES = ("memory", "ephemeral-storage", "hugepages-")


def container_names(pod: Mapping[str, Any]) -> Found:
    """Yield problems of containers that have the name of an earlier container."""
    return given_twice((f".{f}[{i}].name", c.get("name")) for f in _CONTAINERS for i, c in enumerate(pod.get(f) or ()))


def resource_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of a container's requests and limits, alone and compared with each other."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name, amount in amounts.items():
            yield from ((f".{kind}[{name}]", said) for said in _amount_problems(str(name), amount))
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
    elif len(values) != 1:
        yield ".values", f"is {shown(values)}; expected one name for a node's field"


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
    """Yield problems of node ports that two containers request, or that hostNetwork does not permit."""
    given = []
    for i, container in enumerate(pod.get("containers") or ()):
        for j, port in enumerate(container.get("ports") or ()):
            path, number = f".containers[{i}].ports[{j}].hostPort", port.get("hostPort")
            if number and pod.get("hostNetwork") and number != port.get("containerPort"):
                yield path, f"is {number}; expected {port.get('containerPort')}, its containerPort, with hostNetwork"
            protocol = (port.get("protocol") or "TCP", port.get("hostIP") or "")
            given.append((path, f"{number}/{'/'.join(protocol).rstrip('/')}" if number else None))
    yield from given_twice(given)


def dns_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem if dnsPolicy is None and dnsConfig has no DNS server."""
    if pod.get("dnsPolicy") == "None" and not (pod.get("dnsConfig") or {}).get("nameservers"):
        yield ".dnsConfig.nameservers", "is missing; expected at least one address, as dnsPolicy is 'None'"


def init_problems(pod: Mapping[str, Any]) -> Found:
    """Yield problems of init containers with probes or hooks, which only sidecars may have."""
    for index, container in enumerate(pod.get("initContainers") or ()):
        for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(field) and container.get("restartPolicy") != "Always":
                yield f".initContainers[{index}].{field}", "is given; expected none without restartPolicy: Always"


def propagation_problems(container: Mapping[str, Any]) -> Found:
    """Yield problems of mounts that only a privileged container may propagate to the node."""
    privileged = (container.get("securityContext") or {}).get("privileged")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("mountPropagation") == "Bidirectional" and not privileged:
            path = f".volumeMounts[{index}].mountPropagation"
            yield path, "is 'Bidirectional'; expected None or HostToContainer in a container that is not privileged"


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
    for lists in _CONTAINERS:
        for index, container in enumerate(pod.get(lists) or ()):
            own = {k: v for k, v in (container.get("securityContext") or {}).items() if v is not None}
            both = {**common, **own}
            if both.get("runAsNonRoot") and both.get("runAsUser") == 0:
                place = f".{lists}[{index}].securityContext" if "runAsUser" in own else ".securityContext"
                yield f"{place}.runAsUser", _ROOT_USER


def windows_problems(pod: Mapping[str, Any]) -> Found:
    """Yield a problem for each securityContext with options of Windows in a pod whose os is linux."""
    places = [("", pod), *((f".{f}[{i}]", c) for f in _CONTAINERS for i, c in enumerate(pod.get(f) or ()))]
    for path, owner in places if (pod.get("os") or {}).get("name") == "linux" else ():
        if (owner.get("securityContext") or {}).get("windowsOptions"):
            yield f"{path}.securityContext.windowsOptions", "is set; expected none, as os.name is linux"


def projected_path_problems(volume: Mapping[str, Any]) -> Found:
    """Yield problems of files in a projected volume whose path an earlier file has."""
    sources = [(f".sources[{i}].{k}", v) for i, one in enumerate(volume.get("sources") or ()) for k, v in one.items()]
    items = ((f"{path}.items[{i}]", v) for path, source in sources for i, v in enumerate(source.get("items") or ()))
    return given_twice((f"{path}.path", file.get("path")) for path, file in items)


def claim_name_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of resource claims that a container names twice."""
    claims = enumerate(resources.get("claims") or ())
    return given_twice((f".claims[{i}].name", f"{c['name']}/{c.get('request') or ''}".rstrip("/")) for i, c in claims)


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
    constraints = enumerate(pod.get("topologySpreadConstraints") or ())
    return given_twice(
        (f".topologySpreadConstraints[{i}]", f"{one.get('topologyKey')}, {one.get('whenUnsatisfiable')}")
        for i, one in constraints
    )


def pod_resource_problems(resources: Mapping[str, Any]) -> Found:
    """Yield problems of resources of a whole pod, which can be only cpu, memory and huge pages."""
    if resources.get("claims"):
        yield ".claims", f"is {shown(resources['claims'])}; expected them in containers[0].resources"
    for kind in ("requests", "limits"):
        for name, amount in (resources.get(kind) or {}).items():
            if name not in ("cpu", "memory") and not str(name).startswith("hugepages-"):
                yield f".{kind}[{name}]", f"is {shown(amount)}; expected it in containers[0].resources"
