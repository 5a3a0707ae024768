"""One job and what exists for it on this machine: where plans are applied and their effects observed."""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.contract import ENV_LOG_REPORT, ENV_STATUS_TOKEN, IF_INSTALLED, KIND, LABEL_ROLE, ROLE_LAUNCHER
from ringtrain_operator.observe.model import LauncherReport, Observed, PodView
from ringtrain_operator.observe.pods import read_report, status_token, view_pod
from ringtrain_operator.plan import Plan
from ringtrain_operator.status.model import parse_status

from .contents import Contents
from .places import Pod
from .process import LocalProcessRunner

# The launcher is on this machine: what it does not answer in this time it does not answer at all.
STATUS_TIMEOUT_S = 1.0


@dataclass
class LocalCluster:
    """The API server's part: holds the job and its objects, hands pods to the runner.

    `keep` is given the job whenever its status changes. `page_secret`: of all its launchers, so that one link
    shows all attempts. `beside`: ConfigMaps and Secrets of the job's file.
    """

    job: dict[str, Any]
    runner: LocalProcessRunner
    objects: dict[ObjectRef, dict[str, Any]] = field(default_factory=dict)
    keep: Callable[[dict[str, Any]], None] = lambda _: None
    page_secret: str = ""
    beside: Contents = field(default_factory=dict)
    _last_wish: tuple[int, dict[str, int], datetime | None] | None = None
    _started: dict[int, int] = field(default_factory=dict)
    _gone: dict[int, int] = field(default_factory=dict)

    @property
    def status(self) -> dict[str, Any]:
        """The job's status, as last written."""
        found: dict[str, Any] = self.job.setdefault("status", {})
        return found

    def observe(self) -> Observed:
        """What exists now."""
        pods = tuple(view_pod(pod) for pod in self.runner.pods())
        self._note_lost_pods(pods)
        running = any(pod.id.role == "launcher" and pod.phase == "Running" for pod in pods)
        report, error = self._ask_launcher() if running else (None, "")
        return Observed(
            pods=pods,
            objects=frozenset(self.objects),
            launcher=report,
            launcher_error=error,
            status=self.status,
        )

    def apply(self, plan: Plan) -> bool:
        """Write what the plan says, the status first. Returns whether the job itself was deleted."""
        if plan.status is not None:
            self.job["status"] = plan.status
            self.keep(self.job)
        for deletion in plan.delete:
            if deletion.ref.kind == KIND:
                return True
            self.runner.delete(deletion.ref.name, deletion.grace_s)
        for obj in plan.create:
            self._create(obj)
        return False

    def _create(self, obj: Pod) -> None:
        if obj["kind"] == "Pod":
            if obj["metadata"]["labels"].get(LABEL_ROLE) == ROLE_LAUNCHER:
                obj = self._launcher(obj)
            self.runner.start(obj, {**self.beside, **self._secrets()})
            return
        self.objects[ObjectRef(obj["kind"], obj["metadata"]["name"])] = obj

    def _launcher(self, pod: Pod) -> Pod:
        """Add variables of a launcher on this machine: it writes the attempt as a page where it can."""
        more = {ENV_LOG_REPORT: IF_INSTALLED, **({ENV_STATUS_TOKEN: self.page_secret} if self.page_secret else {})}
        first, *others = pod["spec"]["containers"]
        env = [entry for entry in first.get("env") or () if entry["name"] not in more]
        env += [{"name": name, "value": value} for name, value in more.items()]
        return {**pod, "spec": {**pod["spec"], "containers": [{**first, "env": env}, *others]}}

    def _secrets(self) -> dict[tuple[str, str], dict[str, bytes]]:
        """The job's own."""
        return {
            ("Secret", ref.name): {key: base64.b64decode(value) for key, value in obj["data"].items()}
            for ref, obj in self.objects.items()
            if ref.kind == "Secret"
        }

    def _tell_workers(self, url: str, headers: dict[str, str], report: LauncherReport) -> None:
        """Tell an elastic job's launcher how many workers are wanted, unless this process of it knows.

        What fails is tried again with the next look.
        """
        gone = {str(worker): number for worker, number in self._gone.items()}
        wanted = (parse_status(self.status).ledger.attempt_workers, gone, report.start_time)
        if not self.job["spec"].get("elastic") or self._last_wish == wanted:
            return
        body = json.dumps({"workers": wanted[0], "gone": gone}).encode()
        typed = {**headers, "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/workers", data=body, headers=typed, method="PUT")
        with suppress(OSError, http.client.HTTPException), urllib.request.urlopen(asked, timeout=STATUS_TIMEOUT_S):
            self._last_wish = wanted

    def _note_lost_pods(self, pods: tuple[PodView, ...]) -> None:
        """Note which pods of an elastic job's workers have ended: a process group that is gone has ended."""
        living = {p.id.index: p.id.incarnation for p in pods if p.id.role == "worker" and not p.finished}
        for worker, number in self._started.items():
            if living.get(worker) != number:
                self._gone[worker] = number
        self._started.update({worker: number for worker, number in living.items() if number})

    def _status_token(self) -> str:
        launchers = (p for p in self.runner.pods() if p["metadata"]["labels"].get(LABEL_ROLE) == ROLE_LAUNCHER)
        return next(map(status_token, launchers), "")

    def _ask_launcher(self) -> tuple[LauncherReport | None, str]:
        """The launcher's /status, or why there is none."""
        url = self.runner.status_url
        try:
            headers = {"Authorization": f"Bearer {self._status_token()}"}
            asked = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(asked, timeout=STATUS_TIMEOUT_S) as answer:
                report = read_report(json.load(answer))
            self._tell_workers(url.removesuffix("/status"), headers, report)
            return report, ""
        except urllib.error.URLError as exc:
            # Not listening yet is a stage of every start.
            return None, "" if isinstance(exc.reason, ConnectionRefusedError) else f"{url}: {exc.reason}"
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as exc:
            return None, f"{url}: {exc}"
