"""Launcher observer that serves a run's page while it is running, and writes it as one HTML file at the end."""

import logging
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from ringtrain_job.control.model import Verdict
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.registry import Attempt
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.printed import PrintedReportsChoice
from ringtrain_job.logs.samples import MachineSample, read_samples
from ringtrain_page.access import PageAccess, page_link, write_page_file
from ringtrain_page.live import LivePage
from ringtrain_page.machine import PageMachines
from ringtrain_page.metrics import PageMetrics
from ringtrain_page.server import LauncherPageServer, LauncherRunPage
from ringtrain_page.summary import read_page_metrics, write_report

log = logging.getLogger(__name__)


class PageObserver(AttemptObserver):
    """Observer that collects the page's data, serves the live page, and writes the report at the end."""

    order = 60  # the report lists the timeline

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._has_page_file = False
        self.lock = threading.Lock()
        self._choice = PrintedReportsChoice()
        self.metrics = PageMetrics()
        self.machines = PageMachines()
        if attempt.is_over:
            return
        self.metrics = read_page_metrics(attempt.files, self._choice)
        for sample in read_samples(attempt.files.machine):
            self.measured(sample)
        config = attempt.config
        if config.tokens:
            live = LivePage(attempt.status, self)
            access = PageAccess(config.tokens, config.job.uid)
            page = LauncherRunPage(live.encoded, attempt.files, config.timeline)
            self.routes = LauncherPageServer(access, page)

    def listening(self, port: int) -> None:
        config = self._attempt.config
        if config.ports_held and config.tokens:  # a run on this machine, not in pods
            link = page_link(port, config.tokens[0])
            write_page_file(self._attempt.files, link, None if config.elastic else config.world_size)
            self._has_page_file = True

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        if report.get("startedFrom") is not None:
            return
        with self.lock:
            counts, is_first = self._choice.choose(rank, report)
            if is_first:
                self.metrics = PageMetrics()
            if counts:
                self.metrics.add(rank, report)

    def measured(self, sample: MachineSample) -> None:
        if sample.worker < self._attempt.config.workers:
            with self.lock:
                self.machines.add(sample)

    def world_changed(self, ranks: Collection[int]) -> None:
        with self.lock:
            self._choice.keep(ranks)
            self.metrics.keep(ranks)

    def ended(self, verdict: Verdict | None) -> None:
        files = self._attempt.files
        is_wanted = self._attempt.config.writes_report and verdict is not None
        if is_wanted and not (self._attempt.is_over and files.report.exists()):
            _write_report(files, None if self._attempt.is_over else self.metrics)

    def close(self) -> None:
        if self._has_page_file:
            with suppress(OSError):
                self._attempt.files.page.unlink(missing_ok=True)


def open_page(attempt: Attempt) -> PageObserver | None:
    """Return the page's observer if the launcher is to serve a page or write a report; None otherwise."""
    is_served = bool(attempt.config.tokens) and not attempt.is_over
    return PageObserver(attempt) if is_served or attempt.config.writes_report else None


def _write_report(files: AttemptFiles, metrics: PageMetrics | None) -> None:
    """Write the page to report.html. An error, such as a full disk, is only logged."""
    try:
        write_report(files, metrics)
    except OSError as exc:
        log.error("cannot write the attempt's page %s: %s", files.report, exc)
    else:
        log.info("wrote the attempt's page: %s", files.report)
