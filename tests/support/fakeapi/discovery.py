"""What a client is told about the kinds: /api, /apis, their versions, /version and the health checks."""

from typing import Any

from support.fakeapi.resources import Catalogue, Kind

Json = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def answer(catalogue: Catalogue, path: str) -> Json | None:
    """The discovery document at `path`, or None if it is not one."""
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
