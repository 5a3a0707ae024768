"""Stand-in for the API server on this machine: stores one job and its objects, and applies plans to them."""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.contract import ENV_LOG_REPORT, ENV_STATUS_TOKEN, IF_INSTALLED, KIND, LABEL_ROLE, ROLE_LAUNCHER
from ringtrain_operator.observe.model import LauncherReport, Observed, PodView
from ringtrain_operator.observe.pods import read_report, status_token, termination_of, view_pod
from ringtrain_operator.plan import Plan
from ringtrain_operator.status.model import parse_status

from .contents import Contents
from .places import Pod
from .process import LocalProcessRunner

# The launcher is on this machine, so a longer wait would not help.
STATUS_TIMEOUT_S = 1.0


@dataclass
class LocalCluster:
    """Stand-in for the API server, which stores a job and its objects and passes its pods to a process runner.

    `store`: called with the job whenever its status changes. `page_secret`: shared by all launchers of the job, so that
    one link shows all attempts. `contents`: contents of the ConfigMaps and Secrets in the job's file.
    """

    job: dict[str, Any]
    runner: LocalProcessRunner
    objects: dict[ObjectRef, dict[str, Any]] = field(default_factory=dict)
    store: Callable[[dict[str, Any]], None] = lambda _: None
    page_secret: str = ""
    contents: Contents = field(default_factory=dict)
    _last_request: tuple[int, dict[str, int], datetime | None] | None = None
    _started: dict[int, int] = field(default_factory=dict)
    _lost: dict[int, int] = field(default_factory=dict)

    @property
    def status(self) -> dict[str, Any]:
        """The job's last written status."""
        found: dict[str, Any] = self.job.setdefault("status", {})
        return found

    def observe(self) -> Observed:
        """Return the current pods and objects of the job, and its launcher's report."""
        pods = tuple(view_pod(pod) for pod in self.runner.pods())
        self._record_lost_pods(pods)
        running = any(pod.id.role == "launcher" and pod.phase == "Running" for pod in pods)
        report, error = self._read_launcher_report() if running else (None, "")
        return Observed(
            pods=pods,
            objects=frozenset(self.objects),
            launcher=report,
            launcher_error=error,
            status=self.status,
        )

    def launcher_message(self) -> Mapping[str, Any]:
        """Return the termination message of the current attempt's launcher; empty while it runs."""
        attempt = parse_status(self.status).attempt
        views = (view_pod(pod) for pod in self.runner.pods())
        return next((termination_of(view, attempt) for view in views if view.id.role == ROLE_LAUNCHER), {})

    def apply(self, plan: Plan) -> bool:
        """Write the plan's status, delete pods, then create objects. Return whether the job itself was deleted."""
        if plan.status is not None:
            self.job["status"] = plan.status
            self.store(self.job)
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
                obj = self._with_launcher_variables(obj)
            self.runner.start(obj, {**self.contents, **self._secret_contents()})
            return
        self.objects[ObjectRef(obj["kind"], obj["metadata"]["name"])] = obj

    def _with_launcher_variables(self, pod: Pod) -> Pod:
        """Return a launcher's pod with variables by which it writes its page (if that plugin is installed) and with its
        token."""
        more = {ENV_LOG_REPORT: IF_INSTALLED, **({ENV_STATUS_TOKEN: self.page_secret} if self.page_secret else {})}
        first, *others = pod["spec"]["containers"]
        env = [entry for entry in first.get("env") or () if entry["name"] not in more]
        env += [{"name": name, "value": value} for name, value in more.items()]
        return {**pod, "spec": {**pod["spec"], "containers": [{**first, "env": env}, *others]}}

    def _secret_contents(self) -> dict[tuple[str, str], dict[str, bytes]]:
        """Return the contents of the Secrets that the plan created for the job."""
        return {
            ("Secret", ref.name): {key: base64.b64decode(value) for key, value in obj["data"].items()}
            for ref, obj in self.objects.items()
            if ref.kind == "Secret"
        }

    def _request_workers(self, url: str, headers: dict[str, str], report: LauncherReport) -> None:
        """Send the wanted number of workers and the lost pods to an elastic job's launcher.

        Nothing is sent if this launcher process has received the same values before. A failed request is repeated at
        the next observation.
        """
        lost = {str(worker): number for worker, number in self._lost.items()}
        wanted = (parse_status(self.status).ledger.attempt_workers, lost, report.start_time)
        if not self.job["spec"].get("elastic") or self._last_request == wanted:
            return
        body = json.dumps({"workers": wanted[0], "gone": lost}).encode()
        typed = {**headers, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/workers", data=body, headers=typed, method="PUT")
        with suppress(OSError, http.client.HTTPException), urllib.request.urlopen(request, timeout=STATUS_TIMEOUT_S):
            self._last_request = wanted

    def _record_lost_pods(self, pods: tuple[PodView, ...]) -> None:
        """Record which worker pods of an elastic job have ended or no longer exist."""
        living = {p.id.index: p.id.incarnation for p in pods if p.id.role == "worker" and not p.finished}
        for worker, number in self._started.items():
            if living.get(worker) != number:
                self._lost[worker] = number
        self._started.update({worker: number for worker, number in living.items() if number})

    def _status_token(self) -> str:
        launchers = (p for p in self.runner.pods() if p["metadata"]["labels"].get(LABEL_ROLE) == ROLE_LAUNCHER)
        return next(map(status_token, launchers), "")

    def _read_launcher_report(self) -> tuple[LauncherReport | None, str]:
        """Return the launcher's /status report, or None and the reason (empty if the launcher does not listen yet).
        Also send the wanted number of workers to the launcher."""
        url = self.runner.status_url
        try:
            headers = {"Authorization": f"Bearer {self._status_token()}"}
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=STATUS_TIMEOUT_S) as answer:
                report = read_report(json.load(answer))
            self._request_workers(url.removesuffix("/status"), headers, report)
            return report, ""
        except urllib.error.URLError as exc:
            # Each launcher refuses connections until it listens: this is no error.
            return None, "" if isinstance(exc.reason, ConnectionRefusedError) else f"{url}: {exc.reason}"
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as exc:
            return None, f"{url}: {exc}"
