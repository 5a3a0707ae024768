"""The kinds that the fake server knows, how a URL names one, and what a client is told about them."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Kind:
    """One served kind; `subresources` are the names after the object's in a path."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    generation: bool = False  # metadata.generation counts changes outside metadata and status

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


@dataclass(frozen=True)
class Target:
    """Resource that a request's path names."""

    kind: Kind
    namespace: str | None
    name: str | None
    subresource: str | None


KINDS = (
    Kind("", "v1", "Namespace", "namespaces", namespaced=False, subresources=("status",)),
    Kind("", "v1", "Node", "nodes", namespaced=False, subresources=("status",)),
    Kind("", "v1", "Pod", "pods", subresources=("status", "binding", "log", "exec"), short_names=("po",)),
    Kind("", "v1", "Secret", "secrets"),
    Kind("", "v1", "ConfigMap", "configmaps"),
    Kind("", "v1", "Service", "services", subresources=("status",)),
    Kind("", "v1", "ServiceAccount", "serviceaccounts"),
    Kind("", "v1", "Event", "events"),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", generation=True),
    Kind("coordination.k8s.io", "v1", "Lease", "leases"),
    Kind("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups", subresources=("status",), generation=True),
    Kind("", "v1", "PodTemplate", "podtemplates"),
    Kind(
        "autoscaling.x-k8s.io",
        "v1",
        "ProvisioningRequest",
        "provisioningrequests",
        subresources=("status",),
        generation=True,
    ),
    Kind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads", subresources=("status",), generation=True),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
        subresources=("status",),
    ),
    Kind(
        "ringtrain.dev",
        "v1alpha1",
        "DistributedTrainingJob",
        "distributedtrainingjobs",
        subresources=("status",),
        short_names=("dtj",),
        generation=True,
    ),
    Kind("ringtrain.dev", "v1alpha1", "TrainingTemplate", "trainingtemplates", generation=True),
    Kind(
        "ringtrain.dev",
        "v1alpha1",
        "ClusterTrainingTemplate",
        "clustertrainingtemplates",
        namespaced=False,
        generation=True,
    ),
)


@dataclass(frozen=True)
class Catalogue:
    """The served kinds by group, version and plural."""

    kinds: tuple[Kind, ...] = KINDS
    _index: dict[tuple[str, str, str], Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index.update({(k.group, k.version, k.plural): k for k in self.kinds})

    def groups(self) -> dict[str, list[str]]:
        """Versions of every group, in the order of `kinds`."""
        found: dict[str, list[str]] = {}
        for kind in self.kinds:
            versions = found.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return found

    def of_group(self, group: str, version: str) -> list[Kind]:
        """The kinds that one group and version serve."""
        return [k for k in self.kinds if (k.group, k.version) == (group, version)]

    def target(self, path: str) -> Target | None:
        """Return the resource that a path names, or None if nothing is served there."""
        parts = [p for p in path.split("/") if p]
        if len(parts) >= 2 and parts[0] == "api":
            group, version, rest = "", parts[1], parts[2:]
        elif len(parts) >= 3 and parts[0] == "apis":
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = None
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3:
            return None
        kind = self._index.get((group, version, rest[0]))
        subresource = rest[2] if len(rest) == 3 else None
        if kind is None or (subresource and subresource not in kind.subresources):
            return None
        if bool(namespace) and not kind.namespaced:
            return None
        return Target(kind, namespace, rest[1] if len(rest) > 1 else None, subresource)


def discovery(catalogue: Catalogue, path: str) -> Json | None:
    """The document at `path`: /api, /apis, their versions, /version and the health checks; None if it is none."""
    parts = tuple(p for p in path.split("/") if p)
    match parts:
        case ("version",):
            return {"major": "1", "minor": "30", "gitVersion": "v1.30.0-fake"}
        case ("healthz" | "readyz" | "livez",):
            return {"status": "ok"}
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ("apis",):
            groups = [_group(g, v) for g, v in catalogue.groups().items() if g]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ("api", version):
            return _resources(version, catalogue.of_group("", version))
        case ("apis", group):
            versions = catalogue.groups().get(group)
            return _group(group, versions) if versions else None
        case ("apis", group, version):
            kinds = catalogue.of_group(group, version)
            return _resources(f"{group}/{version}", kinds) if kinds else None
    return None


def _group(name: str, versions: list[str]) -> Json:
    known = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": known, "preferredVersion": known[0]}


def _resources(group_version: str, kinds: list[Kind]) -> Json:
    listed: list[Json] = []
    for kind in kinds:
        one = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced}
        listed.append({**one, "kind": kind.kind, "verbs": VERBS, "shortNames": list(kind.short_names)})
        for sub in kind.subresources:
            name = f"{kind.plural}/{sub}"
            listed.append({**one, "name": name, "kind": kind.kind, "singularName": "", "verbs": ["get", "patch"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}
