"""One pod's life on a node: start, status, exit, deletion."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, NotFound
from ringtrain_operator.cluster.api.resources import EVENTS, PODS, SECRETS
from support.kubelet.environment import Sandbox, prepare
from support.kubelet.execs import Beside
from support.kubelet.network import Relay, readiness_url, until_answers
from support.kubelet.runtimes import Container, Exit, Runtime
from support.kubelet.volumes import Missing, NotMounted, look_for_config_maps
from support.ports import free_ports

Json = dict[str, Any]
SERVED_PORTS = {"RINGTRAIN_LAUNCHER_PORT": 7350, "RINGTRAIN_STATUS_PORT": 7351}
MISSING_IMAGE = "missing"  # an image whose name (its registry apart) begins so cannot be pulled
ROOT_IMAGE = "root"  # and one whose name begins so has root as its user
RESTARTED_AFTER_S = 1.0  # a container that ended, where the pod's policy restarts it


def image_id(image: str) -> str:
    """Return the image ID that a kubelet reports: the digest in its repository."""
    return f"{image.partition(':')[0]}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


def now_text(clock: Clock = utc_now) -> str:
    """The time as Kubernetes writes it."""
    return clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def new_condition(kind: str, status: str, reason: str, message: str) -> Json:
    """A condition that holds from now on."""
    told = {"type": kind, "status": status, "reason": reason, "message": message}
    return {**told, "lastTransitionTime": now_text()}


def _root_refusal(spec: Json) -> str:
    """Return why the pod may not run as root, as pkg/kubelet/kuberuntime/security_context.go words it; or nothing."""
    main = spec["containers"][0]
    said = {**(spec.get("securityContext") or {}), **(main.get("securityContext") or {})}
    is_root = main["image"].rpartition("/")[2].startswith(ROOT_IMAGE)
    if not said.get("runAsNonRoot") or said.get("runAsUser", 0 if is_root else 1) != 0:
        return ""
    return (
        "container's runAsUser breaks non-root policy"
        if "runAsUser" in said
        else "container has runAsNonRoot and image will run as root"
    )


class PodLife:
    """Runs one bound pod until it ends or is deleted; `lost` nodes stop speaking in the middle of it.

    `clock` tells when a container ended. `pull_s`: how long it takes to pull an image, which Events tell of; None:
    the image is there, and nothing is said.
    """

    def __init__(
        self,
        api: ApiClient,
        runtime: Runtime,
        pod: Json,
        address: str,
        folder: Path,
        clock: Clock = utc_now,
        pull_s: float | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._pull_s = pull_s
        self._runtime = runtime
        self.pod = pod
        self.address = address
        self.folder = folder
        self._container: Container | None = None
        self._started: Sandbox | None = None
        self._ended = asyncio.Event()
        self._relays: list[Relay] = []
        self._deleted = asyncio.Event()
        self.lost = False
        self.exited = False
        self._restarts = 0
        self._started_at = ""
        self._last: Json = {}

    def follow(self, pod: Json) -> None:
        """The pod changed: its deletion may have been asked for."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._deleted.set()

    def log(self) -> tuple[Path, Callable[[], bool]]:
        """Return the log of the container's present run, and a function that says whether it may still grow."""
        run = self._restarts
        return self.folder / "container.log", lambda: not self.exited and self._restarts == run

    async def start_beside(self, command: Sequence[str]) -> Beside | None:
        """Run a command as if in the container; None if that does not run."""
        if self._started is None or self._ended.is_set():
            return None
        process = await self._runtime.start_beside(self._started, command)
        return Beside(process, self._ended) if process is not None else None

    async def live(self) -> None:
        """From here to the end."""
        try:
            how = await self._run()
            if how is not None and not self.lost:
                await self._post_exit(how)
            await self._deleted.wait()
            if how is None and not self.lost:  # since 1.27 a pod is in an end phase before it goes, also if none ran
                await self._write({"status": {"phase": "Failed"}})
            if not self.lost:
                await self._confirm_deletion()
        except NotFound:
            pass  # deleted by force meanwhile
        finally:
            self.exited = True
            self._ended.set()
            if self._container is not None:
                self._container.kill()
                await self._container.wait()
            for relay in self._relays:
                relay.close()

    async def _run(self) -> Exit | None:
        """Run the container until its last exit and return that exit; None if it never ran."""
        image = self.pod["spec"]["containers"][0]["image"]
        if image.rpartition("/")[2].startswith(MISSING_IMAGE):
            await self._look_for_pull_secrets()
            await self._post_waiting("ImagePullBackOff", f'Back-off pulling image "{image}": not found')
            await self._deleted.wait()
            return None
        if image != image.lower():
            await self._post_waiting("InvalidImageName", f'couldn\'t parse image name "{image}"')
            await self._deleted.wait()
            return None
        if refusal := _root_refusal(self.pod["spec"]):
            await self._post_waiting("CreateContainerConfigError", refusal)
            await self._deleted.wait()
            return None
        sandbox = await self._sandbox()
        if sandbox is None:
            return None
        await self._pull(image)
        while True:
            how = await self._run_once(sandbox)
            if self._deleted.is_set() or not self._starts_again(how):
                self.exited = True
                return how
            await self._post_restarting(how)
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTARTED_AFTER_S):
                    await self._deleted.wait()
            self._restarts += 1
            (self.folder / "container.log").unlink(missing_ok=True)  # who follows it reads it to its end

    def _starts_again(self, how: Exit) -> bool:
        """Whether the pod's policy, or a rule of its container, has a container that ended so started again."""
        policy = self.pod["spec"].get("restartPolicy")
        if policy == "Always" or (policy == "OnFailure" and how.code):
            return True
        rules = self.pod["spec"]["containers"][0].get("restartPolicyRules") or []
        return any(r["action"] == "Restart" and how.code in r["exitCodes"]["values"] for r in rules)

    async def _run_once(self, sandbox: Sandbox) -> Exit:
        try:
            self._container = await self._runtime.start(sandbox)
        except OSError as exc:
            return Exit(128, str(exc), "StartError")
        self._started = sandbox
        self._started_at = now_text(self._clock)
        self._ended.clear()
        url = readiness_url(self.pod, self.address) if self._runtime.needs_sandbox else ""
        await self._post_running(ready=not url)
        ended = asyncio.create_task(self._container.wait())
        asked = asyncio.create_task(self._deleted.wait())
        probing = asyncio.create_task(self._become_ready(url)) if url else None
        await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if probing is not None:
            probing.cancel()
        if not ended.done():
            await self._stop(ended)
        self._ended.set()
        return await ended

    async def _become_ready(self, url: str) -> None:
        await until_answers(url)
        await self._post_running(ready=True)

    async def _stop(self, ended: "asyncio.Task[Exit]") -> None:
        self._container.ask_to_stop()
        grace_s = self.pod["metadata"].get("deletionGracePeriodSeconds") or 0
        done, _ = await asyncio.wait((ended,), timeout=grace_s)
        if not done:
            self._container.kill()

    async def _sandbox(self) -> Sandbox | None:
        said = ""
        while not self._deleted.is_set():
            try:
                if not self._runtime.needs_sandbox:
                    await look_for_config_maps(self._api, self.pod)
                    self.folder.mkdir(parents=True, exist_ok=True)
                    return Sandbox(self.pod, self.address, self.folder, ())
                sandbox = await prepare(self._api, self.pod, self.address, self.folder)
                return await self._with_ports(sandbox)
            except Missing as missing:  # like a kubelet: a Secret that is not there yet is waited for
                if str(missing) != said and isinstance(missing, NotMounted):
                    await self._post_event("FailedMount", str(missing))
                elif str(missing) != said:
                    await self._post_waiting("CreateContainerConfigError", str(missing))
                said = str(missing)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await self._deleted.wait()
        return None

    async def _look_for_pull_secrets(self) -> None:
        """Post a kubelet's event if a pull secret does not exist."""
        for name in (secret["name"] for secret in self.pod["spec"].get("imagePullSecrets") or ()):
            try:
                await self._api.get(SECRETS, self.pod["metadata"]["namespace"], name)
            except NotFound:
                words = f"Unable to retrieve some image pull secrets ({name}); attempting to pull the image may not"
                await self._post_event("FailedToRetrieveImagePullSecret", f"{words} succeed.")

    async def _pull(self, image: str) -> None:
        if self._pull_s is None:
            return
        await self._post_event("Pulling", f'Pulling image "{image}"', "Normal")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pull_s):
                await self._deleted.wait()
        await self._post_event("Pulled", f'Successfully pulled image "{image}"', "Normal")

    async def _post_event(self, reason: str, message: str, kind: str = "Warning") -> None:
        meta = self.pod["metadata"]
        about = {"apiVersion": "v1", "kind": "Pod", **{k: meta[k] for k in ("namespace", "name", "uid")}}
        if kind == "Normal":
            about["fieldPath"] = f"spec.containers{{{self.pod['spec']['containers'][0]['name']}}}"
        event = {
            "metadata": {"name": f"{meta['name']}.{meta['uid']}.{reason.lower()}", "namespace": meta["namespace"]},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "firstTimestamp": now_text(self._clock),
            "lastTimestamp": now_text(self._clock),
            "source": {"component": "kubelet"},
        }
        with suppress(ApiError):
            await self._api.create(EVENTS, meta["namespace"], event)

    async def _with_ports(self, sandbox: Sandbox) -> Sandbox:
        """A launcher listens on free ports, and the pod's own address leads there."""
        if sandbox.env.get("RINGTRAIN_ROLE") != "launcher":
            return sandbox
        env = dict(sandbox.env)
        for (name, default), port in zip(SERVED_PORTS.items(), free_ports(len(SERVED_PORTS)), strict=True):
            self._relays.append(await Relay.open(self.address, int(env.get(name, default)), port))
            env[name] = str(port)
        return Sandbox(sandbox.pod, sandbox.address, sandbox.folder, sandbox.command, env)

    async def _post_running(self, *, ready: bool) -> None:
        state = {"running": {"startedAt": self._started_at}}
        await self._post("Running", state, ready=ready)

    async def _post_waiting(self, reason: str, message: str) -> None:
        await self._post("Pending", {"waiting": {"reason": reason, "message": message}}, ready=False)

    async def _post_restarting(self, how: Exit) -> None:
        """As a kubelet that pauses before it starts a container again: the pod has not ended."""
        waiting = {"reason": "CrashLoopBackOff", "message": f"the container ended with {how.code}"}
        self._last = {"terminated": self._ended_state(how)}
        await self._post("Running", {"waiting": waiting}, ready=False)

    async def _post_exit(self, how: Exit) -> None:
        phase = "Succeeded" if how.code == 0 else "Failed"
        await self._post(phase, {"terminated": self._ended_state(how)}, ready=False)

    def _ended_state(self, how: Exit) -> Json:
        finished_at = now_text(self._clock)
        return {
            "exitCode": how.code,
            "reason": how.reason or ("Completed" if how.code == 0 else "Error"),
            "message": how.message,
            "startedAt": self._started_at or finished_at,
            "finishedAt": finished_at,
        }

    async def _post(self, phase: str, state: Json, *, ready: bool) -> None:
        container = self.pod["spec"]["containers"][0]
        known = (self.pod.get("status") or {}).get("conditions") or []
        truth = "True" if ready else "False"
        truths = {"Initialized": "True", "ContainersReady": truth, "Ready": truth}
        own = [{"type": t, "status": truths[t], "lastTransitionTime": now_text()} for t in truths]
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "conditions": [*(c for c in known if c["type"] not in truths), *own],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": image_id(container["image"]) if "waiting" not in state else "",
                    "ready": ready,
                    "restartCount": self._restarts,
                    "state": state,
                    "lastState": self._last,
                }
            ],
        }
        if phase == "Running":
            status["startTime"] = now_text()
        await self._write({"status": status})

    async def _write(self, patch: Json) -> None:
        meta = self.pod["metadata"]
        same = {"metadata": {"uid": meta["uid"]}, **patch}
        while not self.lost:
            try:
                await self._api.patch(PODS, meta["namespace"], meta["name"], same, subresource="status")
                return
            except NotFound:
                raise
            except ApiError:
                await asyncio.sleep(0.2)  # the API server is away: a kubelet tries for ever

    async def _confirm_deletion(self) -> None:
        meta = self.pod["metadata"]
        while True:
            try:
                await self._api.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_period_s=0)
                return
            except NotFound:
                return
            except ApiError:
                await asyncio.sleep(0.2)
