"""Objects with one growing resource version, and the history that watches read."""

import asyncio
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from support.fakeapi.errors import gone, not_found
from support.fakeapi.patches import copied
from support.fakeapi.resources import Catalogue, Kind
from support.fakeapi.selectors import Selector

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for none), name


def now_text() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Change:
    """One step of history: `previous` is the object before it, None for a creation."""

    version: int
    kind: Kind
    type: str
    obj: Json
    previous: Json | None

    def seen_by(self, selector: Selector) -> tuple[str, Json] | None:
        """Return the event for a watch with `selector`: ADDED on entry, DELETED on exit, None if it gets no event."""
        now = self.type != "DELETED" and selector.matches(self.obj)
        before = self.previous is not None and selector.matches(self.previous)
        if now:
            return ("MODIFIED" if before else "ADDED"), self.obj
        return ("DELETED", self.obj) if before else None


class Store:
    """All objects of one cluster. Every method is synchronous, so each is atomic in the event loop."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue or Catalogue()
        self.version = 1
        self._objects: dict[Kind, dict[Key, Json]] = defaultdict(dict)
        self._history: deque[Change] = deque(maxlen=20_000)
        self._additions: deque[Change] = deque(maxlen=20_000)
        self._oldest = 1  # history reaches back to just after this version
        self._dependents: dict[str, set[tuple[Kind, Key]]] = defaultdict(set)
        self._uids: set[str] = set()
        self._wakers: set[asyncio.Event] = set()
        for name in ("default", "kube-system"):
            self.put(self._kind("namespaces"), {"metadata": {"name": name}, "status": {"phase": "Active"}})

    def _kind(self, plural: str) -> Kind:
        return next(k for k in self.catalogue.kinds if k.plural == plural)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json:
        """A copy of one object; raises a 404 StatusError."""
        found = self._objects[kind].get((namespace or "", name))
        if found is None:
            raise not_found(kind.plural, name)
        return copied(found)

    def exists(self, kind: Kind, namespace: str | None, name: str) -> bool:
        """Whether an object of that name is there."""
        return (namespace or "", name) in self._objects[kind]

    def select(self, kind: Kind, namespace: str | None, selector: Selector) -> list[Json]:
        """The objects that match, by namespace and name. Not copies: readers must not change them."""
        chosen = sorted(self._objects[kind].items())
        return [o for (ns, _), o in chosen if namespace in (None, ns) and selector.matches(o)]

    def put(self, kind: Kind, obj: Json) -> Json:
        """Keep `obj` as the newest state of its name, with a new resource version; returns a copy."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        previous = self._objects[kind].get(key)
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", now_text())
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        stored = copied({"apiVersion": kind.api_version, "kind": kind.kind, **obj})
        self._objects[kind][key] = stored
        self._uids.add(meta["uid"])
        self._index_owners(kind, key, stored)
        self._record(Change(self.version, kind, "MODIFIED" if previous else "ADDED", stored, previous))
        return copied(stored)

    def drop(self, kind: Kind, namespace: str | None, name: str) -> Json:
        """Remove an object; returns its last state. Whoever it owned goes with it."""
        previous = self._objects[kind].pop((namespace or "", name))
        self.version += 1
        last = copied(previous)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._uids.discard(last["metadata"]["uid"])
        self._record(Change(self.version, kind, "DELETED", last, previous))
        return last

    def dependents(self, uid: str) -> list[tuple[Kind, Key]]:
        """The objects that name `uid` as an owner and no other owner that still lives."""
        alive = []
        for kind, key in self._dependents.pop(uid, set()):
            obj = self._objects[kind].get(key)
            owners = [r["uid"] for r in (obj or {}).get("metadata", {}).get("ownerReferences", [])]
            if obj is not None and uid in owners and not any(o in self._uids for o in owners):
                alive.append((kind, key))
        return alive

    def orphaned(self, obj: Json) -> bool:
        """Whether every owner that `obj` names is gone (or never was)."""
        owners = obj["metadata"].get("ownerReferences") or []
        return bool(owners) and not any(o["uid"] in self._uids for o in owners)

    def _index_owners(self, kind: Kind, key: Key, obj: Json) -> None:
        for owner in obj["metadata"].get("ownerReferences") or []:
            self._dependents[owner["uid"]].add((kind, key))

    def _record(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._oldest = self._history[0].version
        self._history.append(change)
        if change.type == "ADDED":
            self._additions.append(change)
        for waker in self._wakers:
            waker.set()

    def compact(self) -> None:
        """Forget history: a watch from before now is answered 410."""
        self._history.clear()
        self._oldest = self.version

    def changes_since(self, version: int) -> Iterator[Change]:
        """The recorded changes after `version`; raises a 410 StatusError if history does not reach back."""
        if version < self._oldest:
            raise gone(f"too old resource version: {version} ({self._oldest})")
        return (c for c in list(self._history) if c.version > version)

    def additions(self, plural: str) -> list[Change]:
        """Every creation of that kind so far, whatever history was compacted."""
        return [c for c in self._additions if c.kind.plural == plural]

    def owned_by(self, uid: str) -> list[str]:
        """Kind and name of every object that names `uid` as its owner."""
        return sorted(
            f"{kind.kind} {name}"
            for kind, objects in self._objects.items()
            for (_, name), obj in objects.items()
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())
        )

    def waker(self) -> asyncio.Event:
        """An event that is set on every change, until `forget(waker)`."""
        event = asyncio.Event()
        self._wakers.add(event)
        return event

    def forget(self, waker: asyncio.Event) -> None:
        """Stop waking a watch that ended."""
        self._wakers.discard(waker)
