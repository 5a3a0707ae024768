"""Memory and time that an open page costs: `python -m bench.page` sends a real launcher the lines and reports of an
hour of 64 ranks, as fast as it accepts them, with the page open in a real Chromium, and writes results/page.json.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Tab, open_browser  # noqa: E402
from support.gang import GangProcesses, until  # noqa: E402

from ringtrain.shared.gen import coordinator_pb2 as pb  # noqa: E402
from ringtrain.shared.rpc import stub_of  # noqa: E402
from ringtrain_job.control.wire import COORDINATOR  # noqa: E402
from ringtrain_job.logs.journal import LogStream  # noqa: E402
from ringtrain_job.logs.layout import AttemptFiles  # noqa: E402
from ringtrain_page.access import page_token  # noqa: E402
from ringtrain_page.summary import write_report  # noqa: E402

LINES_PER_S = 10
SECRET = "secret-of-the-bench"


# A loss, or all that a page draws: curves of 30 metrics, parts of each rank's steps, what agents see of machines.
METRICS = {"plain": 1, "full": 30}


class Worker:
    """One worker with its ranks, as its agent speaks to the launcher, but for the ranks."""

    def __init__(self, stub: Any, index: int, slots: int, seconds: int, kind: str) -> None:
        self._stub, self._index, self._slots, self._seconds = stub, index, slots, seconds
        self._metrics, self._is_full = METRICS[kind], kind == "full"
        self._start = time.time() - seconds
        self.done = False

    def begin(self) -> None:
        ports = list(range(1, self._slots + 1))
        request = pb.RegisterRequest(
            job_uid="uid-1", attempt=1, worker_index=self._index, slots=self._slots, instance="one",
            pod=f"job-worker-{self._index}", address="127.0.0.1", agent_port=1, ring_ports=ports, tf_ports=ports,
            master_port=1,
        )  # fmt: skip
        reply = self._stub.Register(request)
        assert reply.accepted, reply.reason
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        threading.Thread(target=self._hear_orders, daemon=True).start()
        ranks = [pb.RankState(rank=rank, phase="Running") for rank in self._ranks()]
        while not self.done:
            self._stub.Sync(pb.SyncRequest(worker_index=self._index, instance="one", ranks=ranks))
            time.sleep(1.0)

    def _hear_orders(self) -> None:
        with suppress(grpc.RpcError):  # the launcher's end ends the stream
            for _ in self._stub.Orders(pb.OrdersRequest(worker_index=self._index, instance="one")):
                pass

    def _ranks(self) -> range:
        return range(self._index * self._slots, (self._index + 1) * self._slots)

    def feed(self, first: int, seconds: int) -> None:
        """Every line and one report a second of each rank."""
        chunks = []
        for rank in self._ranks():
            lines = [
                f"step {second} batch {part}: loss {4 / (second + 1):.6f}, learning rate 0.001, norm 1.234567\n"
                for second in range(first, first + seconds)
                for part in range(LINES_PER_S)
            ]
            chunks.append(_chunk(LogStream.LOG, rank, first * LINES_PER_S, lines))
            reports = [json.dumps(self._report(second)) + "\n" for second in range(first, first + seconds)]
            before = first
            if self._is_full and rank == self._ranks()[0]:
                reports += [json.dumps(self._sample(second)) + "\n" for second in _looks(first, seconds)]
                before += len(_looks(0, first))
            chunks.append(_chunk(LogStream.REPORT, rank, before, reports))
        for begin in range(0, len(chunks), 32):
            part = chunks[begin : begin + 32]
            self._stub.Append(pb.AppendRequest(attempt=1, worker_index=self._index, chunks=part), timeout=60)

    def _report(self, second: int) -> dict[str, Any]:
        waits = {"reductionWait": 0.3, "updateWait": 0.05} if self._is_full else {}
        metrics = {f"metric {number}": second / self._seconds + number for number in range(self._metrics)}
        return {
            "step": second, "totalSteps": self._seconds, "samples": 32, "loss": 4 / (second + 1), "unit": "images",
            "metrics": metrics, "time": self._start + second, "inputWait": 0.1, **waits,
        }  # fmt: skip

    def _sample(self, second: int) -> dict[str, Any]:
        use = {str(rank): {"cpu": 1.0 + rank / 100, "rss": 2e9 + second} for rank in self._ranks()}
        machine = {
            "worker": self._index, "time": self._start + second, "memory": 2e10 + second, "limit": 6e10,
            "received": 1e8, "sent": 1e8, "disk_wait": 0.01, "ranks": use,
            "gpus": [{"busy": 0.9, "memory": 6e10, "limit": 8e10}] * self._slots,
        }  # fmt: skip
        return {"step": 0, "time": self._start + second, "machine": machine}


def _looks(first: int, seconds: int) -> list[int]:
    """Return the seconds at which an agent samples its machine: each for ten minutes, then every tenth."""
    return [second for second in range(first, first + seconds) if second < 600 or second % 10 == 0]


def _feed(workers: list[Worker], seconds: int) -> None:
    """All workers in the order of time, ten seconds a turn."""
    for first in range(0, seconds, 10):
        for worker in workers:
            worker.feed(first, min(10, seconds - first))
    for worker in workers:
        worker.done = True


def _chunk(stream: LogStream, rank: int, before: int, lines: list[str]) -> Any:
    data = "".join(lines).encode()
    return pb.Chunk(kind=int(stream), rank=rank, first=before + 1, lines=len(lines), data=data)


async def _watch(tab: Tab, workers: list[Worker], pid: int) -> dict[str, Any]:
    heap, launcher, page = 0, 0, 0
    while not workers[-1].done:
        heap = max(heap, await _heap(tab))
        launcher = max(launcher, psutil.Process(pid).memory_info().rss)
        page = max(page, _page_bytes())
        await asyncio.sleep(0.5)
    await tab.until("document.getElementById('lines').innerText.includes('batch 9')")
    await tab.ask("HeapProfiler.collectGarbage")
    return {
        "page_heap_most_mb": round(heap / 1e6, 1),
        "page_heap_at_end_mb": round(await _heap(tab) / 1e6, 1),
        "page_process_most_mb": round(page / 1e6, 1),
        "page_process_at_end_mb": round(_page_bytes() / 1e6, 1),
        "launcher_rss_most_mib": round(_high_water(pid) / 2**20, 1),
    }


async def _heap(tab: Tab) -> int:
    metrics = (await tab.ask("Performance.getMetrics"))["metrics"]
    return int(next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize"))


def _page_bytes() -> int:
    """Memory of this run's renderer that it shares with no other process."""
    own = psutil.Process().children(recursive=True)
    return max((p.memory_full_info().uss for p in own if "--type=renderer" in p.cmdline()), default=0)


def _high_water(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def _look_at_report(tab: Tab, job: GangProcesses) -> dict[str, Any]:
    """The same as one file."""
    report = AttemptFiles(job.logs).report
    write_report(AttemptFiles(job.logs))
    await tab.open(report)
    await tab.until("document.querySelectorAll('.ranks button').length > 0")
    return {
        "report_mb": round(report.stat().st_size / 1e6, 1),
        "report_heap_mb": round(await _heap(tab) / 1e6, 1),
        "report_process_mb": round(_page_bytes() / 1e6, 1),
    }


async def measure(kind: str, ranks: int, seconds: int, folder: Path) -> dict[str, Any]:
    """Feed, look, and say what it took. `ranks`: eight a worker."""
    count = max(1, ranks // 8)
    job = GangProcesses(folder, count, ranks // count, RINGTRAIN_STATUS_TOKEN=SECRET, RINGTRAIN_TIMEOUT="600")
    try:
        launcher = job.launcher()
        until("it listens", lambda: "status on port" in launcher.err())
        before = psutil.Process(launcher.pid).memory_info().rss
        stub = stub_of(grpc.insecure_channel(f"127.0.0.1:{job.control_port}"), COORDINATOR)
        workers = [Worker(stub, index, ranks // count, seconds, kind) for index in range(count)]
        for worker in workers:
            worker.begin()
        base = f"http://127.0.0.1:{job.status_port}/"
        async with open_browser(folder / "browser", within_s=600) as tab:
            await tab.ask("Performance.enable")
            await tab.visit(f"{base}?token={page_token(SECRET)}", ends_at=base)
            await tab.until("document.getElementById('link').innerText === '● live'")
            begun = time.monotonic()
            feeding = asyncio.create_task(asyncio.to_thread(_feed, workers, seconds))
            found = await _watch(tab, workers, launcher.pid)
            await feeding
            took = time.monotonic() - begun
            looked = time.monotonic()
            query = "fetch('page/log?rank=7&text=nowhere').then(answer => answer.json()).then(found => found.before)"
            await tab.value(query)
            searched = time.monotonic() - looked
            live_complaints = list(tab.complaints)
            report = await _look_at_report(tab, job)
            return {
                "kind": kind,
                "ranks": ranks,
                "seconds_of_lines": seconds,
                "lines": ranks * seconds * LINES_PER_S,
                "reports": ranks * seconds,
                "metrics": METRICS[kind],
                "samples_of_machines": count * len(_looks(0, seconds)) if kind == "full" else 0,
                "job_log_mb": round((job.logs / "job.log").stat().st_size / 1e6, 1),
                "took_s": round(took, 1),
                "launcher_rss_before_mib": round(before / 2**20, 1),
                **found,
                **report,
                "search_of_16_mib_s": round(searched, 2),
                "console_errors": live_complaints,
            }
    finally:
        job.close()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3600)
    asked = parser.parse_args()
    found = []
    for kind in METRICS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(asyncio.run(measure(kind, asked.ranks, asked.seconds, Path(folder))))
    text = json.dumps(found, indent=1) + "\n"
    (Path(__file__).parent / "results" / "page.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
