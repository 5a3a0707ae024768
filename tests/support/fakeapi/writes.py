"""The rules of a write: what is defaulted, what is refused, what a subresource may change."""

import re
import secrets
from typing import Any

from support.fakeapi.errors import StatusError, already_exists, conflict, invalid
from support.fakeapi.patches import copied
from support.fakeapi.resources import Kind, Target
from support.fakeapi.store import Json, Store, now_text

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
_SERVER_OWNED = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


def create(store: Store, target: Target, body: Json) -> Json:
    """Keep a new object and return it as stored."""
    kind, obj = target.kind, copied(body)
    meta = obj.setdefault("metadata", {})
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
    name = meta.get("name") or ""
    if not _NAME.match(name) or len(name) > 253:
        raise invalid(kind.kind, name, "metadata.name: Invalid value: not an RFC 1123 subdomain")
    if kind.namespaced:
        _check_namespace(store, target, meta)
    if store.exists(kind, target.namespace, name):
        raise already_exists(kind.plural, name)
    for owned in _SERVER_OWNED:
        meta.pop(owned, None)
    if kind.has_status:
        obj.pop("status", None)
    if kind.generation:
        meta["generation"] = 1
    _default(kind, obj)
    return store.put(kind, obj)


def _check_namespace(store: Store, target: Target, meta: Json) -> None:
    namespaces = next(k for k in store.catalogue.kinds if k.plural == "namespaces")
    if meta.setdefault("namespace", target.namespace) != target.namespace:
        raise StatusError(400, "BadRequest", "the namespace of the provided object does not match the request")
    holder = store.get(namespaces, None, target.namespace or "")
    if "deletionTimestamp" in holder["metadata"]:
        raise StatusError(403, "Forbidden", f"namespace {target.namespace} is being terminated")


def _default(kind: Kind, obj: Json) -> None:
    if kind.plural == "pods":
        _default_pod(obj)
    if kind.plural == "secrets":
        obj.setdefault("type", "Opaque")
    if kind.plural == "namespaces":
        obj.setdefault("status", {"phase": "Active"})


def _default_pod(obj: Json) -> None:
    spec = obj.get("spec") or {}
    containers = spec.get("containers") or []
    name = obj["metadata"]["name"]
    if not containers:
        raise invalid("Pod", name, "spec.containers: Required value")
    for index, container in enumerate(containers):
        for required in ("name", "image"):
            if not container.get(required):
                raise invalid("Pod", name, f"spec.containers[{index}].{required}: Required value")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("serviceAccountName", "default")
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def update(store: Store, target: Target, body: Json) -> Json:
    """Replace the part of an object that this path may change; a stale resourceVersion is a 409."""
    kind = target.kind
    current = store.get(kind, target.namespace, target.name or "")
    wanted = copied(body)
    wanted["metadata"] = wanted_meta = {**wanted.get("metadata", {})}
    version = wanted_meta.get("resourceVersion")
    if version and version != current["metadata"]["resourceVersion"]:
        raise conflict(kind.plural, target.name or "", "the object has been modified; please apply your changes")
    if wanted_meta.get("uid") not in (None, current["metadata"]["uid"]):
        raise conflict(kind.plural, target.name or "", "Precondition failed: UID in precondition does not match")
    after = _merge_parts(kind, target.subresource, current, wanted)
    if {**after, "metadata": _stable(after)} == {**current, "metadata": _stable(current)}:
        return current  # a write that changes nothing makes no new version
    stored = store.put(kind, after)
    if _finished_deleting(stored):
        remove(store, kind, target.namespace, target.name or "")
    return stored


def _merge_parts(kind: Kind, subresource: str | None, current: Json, wanted: Json) -> Json:
    if subresource == "status":
        return {**current, "status": wanted.get("status", {})}
    kept = {k: current["metadata"][k] for k in _SERVER_OWNED if k in current["metadata"]}
    after = {**wanted, "metadata": {**wanted["metadata"], **kept}}
    if kind.has_status:
        after.pop("status", None)
        if "status" in current:
            after["status"] = current["status"]
    if kind.generation and after.get("spec") != current.get("spec"):
        after["metadata"]["generation"] = current["metadata"].get("generation", 0) + 1
    if kind.plural == "pods" and _fixed(after) != _fixed(current):
        raise invalid("Pod", current["metadata"]["name"], "spec: Forbidden: pod updates may not change fields …")
    return after


def _stable(obj: Json) -> Json:
    return {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}


def _fixed(pod: Json) -> Json:
    return {k: v for k, v in pod["spec"].items() if k not in ("tolerations", "activeDeadlineSeconds")}


def bind(store: Store, target: Target, body: Json) -> Json:
    """Give a pod its node (the binding subresource); a pod that has one is a 409."""
    pod = store.get(target.kind, target.namespace, target.name or "")
    if pod["spec"].get("nodeName"):
        raise conflict("pods/binding", target.name or "", "pod is already assigned to a node")
    pod["spec"]["nodeName"] = body["target"]["name"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()}
    others = [c for c in pod["status"].get("conditions", []) if c["type"] != "PodScheduled"]
    pod["status"]["conditions"] = [*others, scheduled]
    store.put(target.kind, pod)
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def delete(store: Store, target: Target, options: Json) -> Json:
    """Delete, or mark for deletion where a finalizer or a pod's grace holds it; preconditions are 409s."""
    kind, name = target.kind, target.name or ""
    obj = store.get(kind, target.namespace, name)
    for key, expected in (options.get("preconditions") or {}).items():
        if obj["metadata"].get(key) != expected:
            raise conflict(kind.plural, name, f"Precondition failed: {key} in precondition: {expected}")
    grace = _grace(kind, obj, options)
    if grace or obj["metadata"].get("finalizers"):
        return _mark(store, kind, obj, grace)
    return remove(store, kind, target.namespace, name)


def _grace(kind: Kind, obj: Json, options: Json) -> int:
    if kind.plural != "pods" or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    wanted = options.get("gracePeriodSeconds")
    grace = obj["spec"].get("terminationGracePeriodSeconds", 30) if wanted is None else wanted
    return int(min(grace, obj["metadata"].get("deletionGracePeriodSeconds", grace)))


def _mark(store: Store, kind: Kind, obj: Json, grace: int) -> Json:
    meta: dict[str, Any] = obj["metadata"]
    if "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == grace:
        return obj
    meta["deletionTimestamp"] = meta.get("deletionTimestamp", now_text())
    meta["deletionGracePeriodSeconds"] = grace
    return store.put(kind, obj)


def _finished_deleting(obj: Json) -> bool:
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def remove(store: Store, kind: Kind, namespace: str | None, name: str) -> Json:
    """Take an object away, and everything in a namespace with the namespace. Dependents are `collect`'s."""
    last = store.drop(kind, namespace, name)
    if kind.plural == "namespaces":
        for inner in store.catalogue.kinds:
            if inner.namespaced:
                for obj in store.select(inner, name, _EVERYTHING):
                    store.drop(inner, name, obj["metadata"]["name"])
    return last


def collect(store: Store, uid: str) -> None:
    """Delete what only `uid` owned, as the garbage collector does."""
    for kind, (namespace, name) in store.dependents(uid):
        if store.exists(kind, namespace, name):
            gone = delete(store, Target(kind, namespace or None, name, None), {})
            if not store.exists(kind, namespace, name):
                collect(store, gone["metadata"]["uid"])


class _Everything:
    def matches(self, _obj: Any) -> bool:
        return True


_EVERYTHING: Any = _Everything()
