"""`/status`: everything that the launcher knows about the job, as JSON (docs/contract.md)."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringtrain.shared import contract
from ringtrain_job.control.model import Outcome, RankPhase, RankState, Verdict
from ringtrain_job.control.termination import failure_json
from ringtrain_job.launcher.backend import Backend
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.metrics import MOST_RANKS
from ringtrain_job.launcher.observers import Observers
from ringtrain_job.launcher.throughput import GangThroughput, Progress, progress_json
from ringtrain_job.launcher.verdict import GangView
from ringtrain_job.logs.about import AboutFile
from ringtrain_job.logs.printed import PrintedReportsChoice
from ringtrain_job.logs.samples import MachineSample
from ringtrain_job.logs.store import LogStore


class LauncherReports:
    """Reports of all ranks, with a lock: threads that store logs add them, threads that answer `/status` read them."""

    def __init__(self, world_size: int, nan_is_fatal: bool = False) -> None:
        self._lock = threading.Lock()
        self._nan_is_fatal = nan_is_fatal
        self._throughput = GangThroughput(world_size, nan_is_fatal)
        self.voice = PrintedReportsChoice()

    def start_over(self, world_size: int) -> None:
        """Delete all reports, and expect reports of `world_size` ranks. The caller must hold the lock."""
        self._throughput = GangThroughput(world_size, self._nan_is_fatal)

    def __enter__(self) -> GangThroughput:
        self._lock.acquire()
        return self._throughput

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@dataclass
class StatusSnapshot:
    """Data for `/status`, `/metrics` and `/healthz`.

    `running_since`: time at which the gang was complete; None before. `last_progress`, `first_progress`: arrival of the
    newest and the first report. All times are of this host's clock, because ranks' clocks may be wrong. `backend`:
    starts the ranks, and has entries in `/status`. `data`: returns the entry of a job with data workers. `machines`:
    newest sample of each worker, guarded by the lock of `reports`. `about`: description of the program and its image.
    `observers`: observers of the attempt. `started_from`: step and path of the checkpoint that training resumed from;
    the path is empty if there was none.
    """

    config: LauncherConfig
    gang: Gang
    store: LogStore
    reports: LauncherReports
    start_time: float = field(default_factory=time.time)
    running_since: float | None = None
    last_progress: float | None = None
    first_progress: float | None = None
    started_from: tuple[int, str] | None = None
    about: AboutFile | None = None
    machines: dict[int, MachineSample] = field(default_factory=dict)
    verdict: Verdict | None = None
    backend: Backend | None = None
    data: Callable[[], dict[str, Any]] | None = None
    observers: Observers = field(default_factory=Observers)

    @property
    def world_size(self) -> int:
        """Number of ranks in the current world."""
        return self.config.world_size if self.backend is None else self.backend.ranks

    def backend_status(self) -> Mapping[str, Any]:
        """Return the entries of the backend in `/status`."""
        return {} if self.backend is None else self.backend.status()

    def follow(self) -> None:
        """Load the reports and samples in the log store, and pass new content to the observers from now on."""
        store = self.store
        for sample in store.samples():
            self._add_sample(sample)
        for rank, report in store.rows():
            self.add_report(rank, report)
        with self.reports as reports:
            self.first_progress = reports.first_report_time

        def on_report(rank: int, report: dict[str, Any]) -> None:
            self.add_report(rank, report)
            self.observers.reported(rank, report)

        def on_machine(sample: MachineSample) -> None:
            self._add_sample(sample)
            self.observers.measured(sample)

        store.on_merged, store.on_report, store.on_machine = self.observers.wrote, on_report, on_machine
        if self.about is not None:
            store.on_about = self.about.add

    def add_report(self, rank: int, report: dict[str, Any]) -> None:
        """Record one report of `rank`."""
        path = report.get("startedFrom")
        if path is not None:  # not a step; the first one counts
            self.started_from = self.started_from or (int(report["step"]), path)
            return
        with self.reports:
            counts, is_first = self.reports.voice.choose(rank, report)
            if not counts:
                return
            if is_first:
                self.reports.start_over(1 if "printed" in report else self.world_size)
        self.last_progress = time.time()
        self.first_progress = self.first_progress or self.last_progress
        with self.reports as reports:
            reports.add(rank, report)

    def keep_ranks(self, ranks: Collection[int]) -> None:
        """Remove reports of all ranks except `ranks`, the members of the new world."""
        with self.reports as reports:
            reports.keep(ranks)
            self.reports.voice.keep(ranks)
        self.observers.world_changed(ranks)

    def _add_sample(self, sample: MachineSample) -> None:
        if sample.worker < self.config.workers:
            with self.reports:
                self.machines[sample.worker] = sample

    def reported_step(self) -> int:
        """Return the lowest of the ranks' last reported steps; 0 before the first report."""
        with self.reports as reports:
            return reports.lowest_step or 0

    @property
    def phase(self) -> str:
        """Phase of the attempt: `Waiting` (for agents), `Running`, `Succeeded` or `Failed`."""
        if self.verdict is not None:
            return "Succeeded" if self.verdict.outcome is Outcome.SUCCEEDED else "Failed"
        return "Waiting" if self.running_since is None else "Running"

    @property
    def state(self) -> str:
        """Outcome of the attempt; its phase before the end."""
        return self.verdict.outcome.value if self.verdict else self.phase

    def progress(self) -> dict[str, Any] | None:
        """Return the training's progress as a JSON object (docs/contract.md); None before the first report."""
        with self.reports as reports:
            progress, error = reports.progress(), reports.uncertainty()
        return self._progress_json(progress, error)

    def status(self) -> dict[str, Any]:
        """Return the document that `/status` answers with, as JSON values."""
        view = self.gang.view()
        with self.reports as reports:
            ranks = [self._rank_json(reports, state) for state in view.ranks]
            seen = [sample.document() for _, sample in sorted(self.machines.items())]
        job = self._job_json(view, self._data_json())
        return {**job, "workers": self._workers_json(view), "ranks": ranks, "machines": seen}

    def brief_status(self) -> dict[str, Any]:
        """Return the JSON document of `/status?brief`: without ranks, and with equal consecutive workers merged."""
        view, data = self.gang.view(), self._data_json()
        registrations, lost = self.gang.registrations(), self.gang.lost_workers()
        pods = {index: found.incarnation for index, found in registrations.items() if found.incarnation}
        workers = [
            {
                "index": worker.index,
                **({"incarnation": pods[worker.index]} if worker.index in pods else {}),
                "registered": worker.index in registrations,
                "lost": worker.index in lost,
            }
            for worker in view.workers
        ]
        if data is not None:
            served = [{"index": one["index"], "registered": one["registered"]} for one in data["workers"]]
            data = {**data, "workers": merged_report_entries(served)}
        return {**self._job_json(view, data), "workers": merged_report_entries(workers)}

    def _job_json(self, view: GangView, data: dict[str, Any] | None) -> dict[str, Any]:
        """Return the entries of `/status` about the whole job."""
        job = self.config.job
        with self.reports as reports:
            progress, error = reports.progress(), reports.uncertainty()
            times, longest = reports.times.mean(), reports.times.longest()
            slowest = reports.slowest([state.rank for state in view.ranks if state.phase is RankPhase.RUNNING])
            step = None if slowest is None else reports.step_of(slowest)
        failure = self.verdict.failure if self.verdict else None
        return {
            "version": contract.STATUS_VERSION,
            "job": job.name,
            "namespace": job.namespace,
            "attempt": job.attempt,
            "phase": self.phase,
            "worldSize": self.world_size,
            "progress": self._progress_json(progress, error),
            "stepTime": times,
            "longestWork": None if longest is None else vars(longest),
            "lastProgressTime": self.last_progress,
            "firstStepTime": self.first_progress,
            "startTime": self.start_time,
            "runningSince": self.running_since,
            "slowest": None if slowest is None else self._slowest_json(view, slowest, step),
            "failure": failure_json(failure) if failure else None,
            "logs": {
                "directory": str(self.store.files.directory),
                "lines": self.store.lines,
                "dropped": self.store.dropped,
                **self.observers.status(),
            },
            "data": data,
            **self.backend_status(),
        }

    def _data_json(self) -> dict[str, Any] | None:
        if self.data is None:
            return None
        with self.reports as reports:
            waited = reports.times.input_fraction
        return {**self.data(), "waitFraction": waited}

    def _workers_json(self, view: GangView) -> list[dict[str, Any]]:
        registrations, lost = self.gang.registrations(), self.gang.lost_workers()
        return [
            {
                "index": worker.index,
                "pod": worker.pod,
                "node": worker.node,
                "address": registrations[worker.index].address if worker.index in registrations else "",
                "registered": worker.index in registrations,
                "lost": worker.index in lost,
            }
            for worker in view.workers
        ]

    def _rank_json(self, reports: GangThroughput, state: RankState) -> dict[str, Any]:
        step, more = reports.step_of(state.rank), self._measured_json(reports, state.rank)
        return {"rank": state.rank, "state": state.phase.value, "exitCode": state.exit_code, "step": step, **more}

    def _measured_json(self, reports: GangThroughput, rank: int) -> dict[str, Any]:
        """Return the measured times of one rank. In a large world, return only input wait and lag."""
        measured: dict[str, Any] = {"inputWait": reports.times.input_part(rank), "lag": reports.lag.of(rank)}
        if self.config.world_size <= MOST_RANKS:
            measured["stepTime"] = reports.times.of(rank)
        return measured

    def _slowest_json(self, view: GangView, rank: int, step: int | None) -> dict[str, Any]:
        worker = view.worker_of(rank)
        tail = list(self.store.tail(rank))
        return {"rank": rank, "pod": worker.pod, "node": worker.node, "step": step, "logTail": tail}

    def _progress_json(self, progress: Progress | None, error: float | None) -> dict[str, Any] | None:
        start = self.start_text()
        if progress is None:
            # Known before the first step: the start of the training.
            return {"step": self.started_from[0], "startedFrom": start} if self.started_from else None
        return progress_json(progress, error, start)

    def start_text(self) -> str | None:
        """Return text about the checkpoint from which training resumed; None if unknown."""
        if self.started_from is None:
            return None
        step, path = self.started_from
        return f"step {step} of {path}" if path else "nothing: there was no checkpoint"


def merged_report_entries(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `entries`, sorted by `index`, with equal consecutive ones merged: `index` is the first, `to` the last."""
    found: list[dict[str, Any]] = []
    end, rest = -1, None
    for entry in entries:
        said = {key: value for key, value in entry.items() if key != "index"}
        if found and entry["index"] == end + 1 and said == rest:
            found[-1]["to"] = entry["index"]
        else:
            found.append(entry)
        end, rest = entry["index"], said
    return found
