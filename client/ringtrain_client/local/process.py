"""Runner of pods as process groups of this machine, in place of a kubelet."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.errors import LocalUnsupported
from ringtrain_operator.spec.parts import DEFAULT_GRACE_S
from ringtrain_operator.status.model import format_time

from .contents import Contents
from .orphans import LocalOrphanWatcher, adopt_orphans, die_with_parent, end_orphans
from .places import LocalPlaces, Pod
from .sandbox import LocalPodCommand, command_of

# Grace period of pods when the run is closed.
CLOSING_GRACE_S = 10.0
# Longest backoff between two processes of a restarted pod; the first pause is 1 s.
LONGEST_PAUSE_S = 60.0
MARKER = "RINGTRAIN_LOCAL_POD"
# A kubelet's limits when it reads the termination message from the log.
_FALLBACK_BYTES, _FALLBACK_LINES = 2048, 80


@dataclass
class _LocalPod:
    """A pod and its first process. `status`: newest status, in the format of Kubernetes."""

    pod: Pod
    marker: str
    directory: Path
    command: LocalPodCommand | None = None
    process: subprocess.Popen[bytes] | None = None
    status: dict[str, Any] = field(default_factory=dict)
    kill_at: float | None = None
    restarts: int = 0
    restart_at: float | None = None
    ended: dict[str, Any] = field(default_factory=dict)  # terminated state of the process before the last restart

    @property
    def running(self) -> bool:
        return self.process is not None

    def is_restarted(self, code: int) -> bool:
        """Return whether the container's restart rules restart a process that ended with `code`."""
        rules = self.pod["spec"]["containers"][0].get("restartPolicyRules") or ()
        return self.kill_at is None and any(code in rule["exitCodes"]["values"] for rule in rules)


class LocalProcessRunner:
    """Runner that starts pods as process groups and reports their status, as a kubelet does.

    Not thread-safe; `close` must be called.
    """

    def __init__(self, run_dir: Path, claims_dir: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="dtj-"))
        self._places = LocalPlaces(run_dir.resolve(), claims_dir.resolve())
        self._pods: dict[str, _LocalPod] = {}
        self._watcher = LocalOrphanWatcher(self._scratch)
        adopt_orphans()

    def start(self, pod: Pod, contents: Contents) -> None:
        """Start `pod` as a process group.

        A pod that cannot start becomes a failed pod. In the first attempt, LocalUnsupported is raised instead, because
        no later attempt could start either.
        """
        uid = str(uuid.uuid4())
        pod["metadata"]["uid"] = uid
        pod["metadata"]["creationTimestamp"] = format_time(datetime.now(UTC))
        pod["spec"]["nodeName"] = socket.gethostname()
        local = _LocalPod(pod, f"{MARKER}={uid}", self._scratch / uid)
        local.directory.mkdir(mode=0o700)
        self._pods[pod["metadata"]["name"]] = local
        try:
            local.command = command_of(pod, self._places, local.directory, contents)
            local.process = self._spawn(local.command, uid)
        except (LocalUnsupported, OSError) as exc:
            attempt = pod["metadata"]["labels"].get(contract.LABEL_ATTEMPT)
            if attempt == "1" and isinstance(exc, LocalUnsupported):
                raise
            local.status = _pod_status(pod, "Failed", _terminated_state(128, "StartError", str(exc)))
            return
        local.status = _pod_status(pod, "Running", {"running": {"startedAt": format_time(datetime.now(UTC))}})

    def pods(self) -> list[Pod]:
        """Return all pods with their current status. Pods that were deleted and have ended are left out."""
        for name, local in list(self._pods.items()):
            self._reap(local)
            if local.kill_at is not None and not local.running:
                del self._pods[name]
        return [{**local.pod, "status": local.status} for local in self._pods.values()]

    def delete(self, name: str, grace_s: int | None) -> None:
        """Delete a pod: send SIGTERM now, and SIGKILL after the grace period (None: the one in the pod's spec)."""
        local = self._pods[name]
        own = local.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        grace = own if grace_s is None else grace_s
        if local.kill_at is None:
            ending = datetime.now(UTC) + timedelta(seconds=grace)
            local.pod["metadata"]["deletionTimestamp"] = format_time(ending)
            local.kill_at = time.monotonic() + grace
        local.kill_at = min(local.kill_at, time.monotonic() + grace)
        if local.process is not None:
            with contextlib.suppress(ProcessLookupError):
                local.process.send_signal(signal.SIGTERM)  # a kubelet also signals only the container's first process

    @property
    def status_url(self) -> str:
        """URL of the launcher's /status."""
        return f"http://127.0.0.1:{self._places.ports.status}/status"

    def close(self) -> None:
        """End all pods; remove everything except logs and claims. Ctrl-C shortens the grace period to zero."""
        grace_s = CLOSING_GRACE_S
        while True:
            try:
                self._end_all(grace_s)
                return
            except KeyboardInterrupt:
                grace_s = 0.0

    def _end_all(self, grace_s: float) -> None:
        """End all pods, the launcher first. Safe to repeat after an interrupt at any point."""
        give_up_at = time.monotonic() + grace_s
        self.end_launchers(give_up_at)
        for name in list(self._pods):
            self.delete(name, max(0, round(give_up_at - time.monotonic())))
        while any(local.running for local in self._pods.values()):
            self.pods()
            time.sleep(0.05)
        self._places.close()
        self._watcher.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def end_launchers(self, give_up_at: float) -> None:
        """Send SIGINT to the launchers, which end their ranks and record the stop; wait at most until `give_up_at`.

        If all pods got SIGTERM at once, a launcher could take the end of its agents for a failure.
        """
        roles = ((local, local.pod["metadata"]["labels"].get(contract.LABEL_ROLE)) for local in self._pods.values())
        launchers = [local for local, role in roles if role == contract.ROLE_LAUNCHER]
        for local in launchers:
            if local.process is not None and local.process.poll() is None:
                local.process.send_signal(signal.SIGINT)
        while time.monotonic() < give_up_at and any(
            local.process is not None and local.process.poll() is None for local in launchers
        ):
            time.sleep(0.05)

    def _reap(self, local: _LocalPod) -> None:
        """Handle the end of a pod's first process: kill the pod's other processes and update the pod's status.

        If the process still runs, kill it once its grace period is over. If it has ended before, restart it when due.
        """
        process = local.process
        if process is None:
            self._restart_if_due(local)
            return
        if process.poll() is None:
            if local.kill_at is not None and time.monotonic() >= local.kill_at:
                _kill_group(process.pid)
            return
        _kill_group(process.pid)
        end_orphans(local.marker)
        local.process = None
        assert local.command is not None
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        message = _termination_message(local.command, code)
        reason = "Completed" if code == 0 else "Error"
        if local.is_restarted(code):
            local.restart_at = time.monotonic() + min(2.0**local.restarts, LONGEST_PAUSE_S)
            local.ended = _terminated_state(code, reason, message)
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            local.status = _pod_status(local.pod, "Running", waiting, local.restarts, local.ended)
            return
        local.status = _pod_status(
            local.pod, "Failed" if code else "Succeeded", _terminated_state(code, reason, message)
        )
        shutil.rmtree(local.directory, ignore_errors=True)

    def _restart_if_due(self, local: _LocalPod) -> None:
        """Restart a pod's process when its backoff has ended."""
        if local.restart_at is None or time.monotonic() < local.restart_at or local.kill_at is not None:
            return
        assert local.command is not None
        local.restart_at, local.restarts = None, local.restarts + 1
        local.command.termination_path.unlink(missing_ok=True)
        local.process = self._spawn(local.command, local.pod["metadata"]["uid"])
        running = {"running": {"startedAt": format_time(datetime.now(UTC))}}
        local.status = _pod_status(local.pod, "Running", running, local.restarts, local.ended)

    def _spawn(self, command: LocalPodCommand, uid: str) -> subprocess.Popen[bytes]:
        command.log_path.parent.mkdir(parents=True, exist_ok=True)
        with command.log_path.open("ab") as log:
            return subprocess.Popen(
                command.argv,
                env={**command.env, **self._watcher.variables(), MARKER: uid},
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )


def _pod_status(
    pod: Pod, phase: str, state: dict[str, Any], restarts: int = 0, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "state": state,
        "lastState": last or {},
        "ready": "running" in state,
        "restartCount": restarts,
    }
    return {"phase": phase, "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "containerStatuses": [container]}


def _terminated_state(code: int, reason: str, message: str) -> dict[str, Any]:
    finished = format_time(datetime.now(UTC))
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": finished}}


def _termination_message(command: LocalPodCommand, code: int) -> str:
    """Return a pod's termination message; if it failed without one, the end of its log."""
    with contextlib.suppress(OSError):
        message = command.termination_path.read_bytes()[: contract.TERMINATION_MESSAGE_MAX_BYTES]
        if message:
            return message.decode(errors="replace")
    if code == 0:
        return ""
    with contextlib.suppress(OSError), command.log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _FALLBACK_BYTES))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-_FALLBACK_LINES:])
    return ""


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
