"""Nodes whose kubelets are compared: pods in one namespace, with all their states."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import Unreachable
from ringtrain_operator.cluster.api.execute import execute_in_pod
from ringtrain_operator.cluster.api.resources import EVENTS, PODS, ApiResource
from support.deadlines import patient

Json = dict[str, Any]
WITHIN_S = patient(90.0)  # a real kubelet retries what is missing after some 10 s
# Script of bash that runs until `NodesUnderTest.end` writes its exit code.
HOLD = "mkfifo $DATA/end; exec 3<>$DATA/end; echo up; read code <&3; echo down; exit $code"


@dataclass
class Recording:
    """All changes of a namespace's objects of one kind, in order."""

    changes: list[Json] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, api: ApiClient, resource: ApiResource, namespace: str) -> None:
        """Record until cancelled."""
        async with aclosing(api.watch(resource, namespace)) as changes:
            async for change in changes:
                if change["type"] != "BOOKMARK":
                    self.changes.append(change)
                    self.more.set()

    async def until(self, holds: Callable[[Json], Any]) -> Json:
        """Return the object of the first change for which `holds` is true."""
        read = 0
        async with asyncio.timeout(WITHIN_S):
            while True:
                for change in self.changes[read:]:
                    if holds(change):
                        found: Json = change["object"]
                        return found
                read = len(self.changes)
                self.more.clear()
                await self.more.wait()


@dataclass(frozen=True)
class NodesUnderTest:
    """Nodes of a cluster, and one namespace. `images`: names of the images "worker" and "root" there."""

    api: ApiClient
    namespace: str
    images: Mapping[str, str]
    evict: Callable[[str, str], Awaitable[None]]
    pods: Recording = field(default_factory=Recording)
    events: Recording = field(default_factory=Recording)

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Record pods and events. An error gets a note with the pods' last status."""
        recordings = ((self.pods, PODS), (self.events, EVENTS))
        tasks = [asyncio.create_task(one.follow(self.api, kind, self.namespace)) for one, kind in recordings]
        try:
            yield
        except Exception as exc:
            last = {
                change["object"]["metadata"]["name"]: change["object"].get("status") for change in self.pods.changes
            }
            exc.add_note("\n".join(f"pod {name}: {status}" for name, status in last.items()))
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def make(self, name: str, *command: str, image: str = "worker", pod: Json | None = None, **main: Any) -> None:
        """Create a pod. `pod`: fields of its spec, `main`: of its container. $DATA is a volume of the pod."""
        paths = [{"name": "DATA", "value": "/data"}, {"name": "MESSAGE", "value": "/dev/termination-log"}]
        container = {"name": "main", "image": self.images.get(image, image), "imagePullPolicy": "IfNotPresent"} | main
        container |= {"command": list(command), "env": paths + main.get("env", [])}
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}, *main.get("volumeMounts", [])]
        spec: Json = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 20, "containers": [container]}
        spec |= pod or {}
        spec["volumes"] = [{"name": "data", "emptyDir": {}}, *spec.get("volumes", [])]
        await self.api.create(
            PODS, self.namespace, {"metadata": {"name": name, "labels": {"name": name}}, "spec": spec}
        )

    async def run(self, name: str, script: str, **fields: Any) -> None:
        """Create a pod that runs a script of bash."""
        await self.make(name, "bash", "-c", script, **fields)

    async def until(self, name: str, holds: Callable[[Json], Any]) -> Json:
        """Return the pod's first state for which `holds` is true."""
        return await self.pods.until(lambda c: c["object"]["metadata"]["name"] == name and holds(c["object"]))

    async def running(self, name: str) -> Json:
        """Return the pod's first state in which its container runs."""
        return await self.until(name, lambda p: "running" in main_of(p).get("state", {}))

    async def waiting(self, name: str, reason: str) -> Json:
        """Return the pod's first state in which its container waits for `reason`."""
        return await self.until(name, lambda p: main_of(p).get("state", {}).get("waiting", {}).get("reason") == reason)

    async def ended(self, name: str) -> Json:
        """Return the pod's first state in which it has ended."""
        return await self.until(name, lambda p: p["status"]["phase"] in ("Succeeded", "Failed"))

    async def deleted(self, name: str) -> Json:
        """Return the last state of a pod that is being deleted."""
        return await self.pods.until(lambda c: c["type"] == "DELETED" and c["object"]["metadata"]["name"] == name)

    async def up(self, name: str) -> None:
        """Return when the pod's program has written its first line, "up"."""
        await self.running(name)
        async with aclosing(self.api.pod_log(self.namespace, name, follow=True)) as lines:
            assert await anext(lines) == b"up\n"

    async def end(self, name: str, code: int) -> Json:
        """End a pod that runs HOLD, and return the pod."""
        with suppress(Unreachable):  # the command is killed if its container ends first
            await self.output(name, f"echo {code} >$DATA/end")
        return await self.ended(name)

    async def log(self, name: str, **options: Any) -> list[bytes]:
        """Return the lines of a pod's log."""
        return [line async for line in self.api.pod_log(self.namespace, name, **options)]

    async def output(self, name: str, script: str) -> bytes:
        """Run a script in the pod's container, and return its output."""
        stream = execute_in_pod(self.api.connection, self.namespace, name, "main", ["bash", "-c", script])
        return b"".join([chunk async for chunk in stream])


def main_of(pod: Json) -> Json:
    """Return the status of the pod's container; empty if there is none yet."""
    found: list[Json] = pod.get("status", {}).get("containerStatuses") or [{}]
    return found[0]


def end_of(pod: Json) -> tuple[str, int, str]:
    """Return a pod's phase, and the exit code and reason of its container."""
    ended = main_of(pod)["state"]["terminated"]
    return pod["status"]["phase"], ended["exitCode"], ended["reason"]


def condition_of(pod: Json, kind: str) -> Json:
    """Return one condition of the pod; empty if it has none of this type."""
    found: Json = next((c for c in pod["status"].get("conditions") or () if c["type"] == kind), {})
    return found


def conditions_of(pod: Json) -> str:
    """Return the first letters, of True or False, of the pod's conditions in the order in which they become true."""
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return "".join(condition_of(pod, kind)["status"][0] for kind in kinds)
