"""What an open page costs: `python -m bench.page` feeds a real launcher the lines of an hour of 64 ranks, as fast
as it takes them, with the page open in a real Chromium, and writes results/page.json. Needs chromium.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
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
from ringtrain.shared.gen import coordinator_pb2_grpc  # noqa: E402
from ringtrain_job.logs.journal import Stream  # noqa: E402
from ringtrain_job.page.access import page_token  # noqa: E402

LINES_PER_S = 10
SECRET = "secret-of-the-bench"


class Worker:
    """One worker with all ranks, as its agent speaks to the launcher, but for the ranks."""

    def __init__(self, stub: Any, ranks: int, seconds: int) -> None:
        self._stub, self._ranks, self._seconds = stub, ranks, seconds
        self._start = time.time() - seconds
        self.done = False

    def begin(self) -> None:
        ports = list(range(1, self._ranks + 1))
        request = pb.RegisterRequest(
            job_uid="uid-1", attempt=1, worker_index=0, slots=self._ranks, instance="one", pod="job-worker-0",
            address="127.0.0.1", agent_port=1, ring_ports=ports, tf_ports=ports, master_port=1,
        )  # fmt: skip
        reply = self._stub.Register(request)
        assert reply.accepted, reply.reason
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        threading.Thread(target=self._hear_orders, daemon=True).start()
        ranks = [pb.RankState(rank=rank, phase="Running") for rank in range(self._ranks)]
        while not self.done:
            self._stub.Sync(pb.SyncRequest(worker_index=0, instance="one", ranks=ranks))
            time.sleep(1.0)

    def _hear_orders(self) -> None:
        with suppress(grpc.RpcError):  # the launcher's end ends the stream
            for _ in self._stub.Orders(pb.OrdersRequest(worker_index=0, instance="one")):
                pass

    def feed(self) -> None:
        """Every line and one report a second of each rank, in the order of time, a minute of all ranks a call."""
        for first in range(0, self._seconds, 10):
            for request in self._requests(first, min(10, self._seconds - first)):
                self._stub.Append(request, timeout=60)
        self.done = True

    def _requests(self, first: int, seconds: int) -> Iterator[Any]:
        chunks = []
        for rank in range(self._ranks):
            lines = [
                f"step {second} batch {part}: loss {4 / (second + 1):.6f}, learning rate 0.001, norm 1.234567\n"
                for second in range(first, first + seconds)
                for part in range(LINES_PER_S)
            ]
            chunks.append(_chunk(Stream.LOG, rank, first * LINES_PER_S, lines))
            reports = [json.dumps(self._report(second)) + "\n" for second in range(first, first + seconds)]
            chunks.append(_chunk(Stream.REPORT, rank, first, reports))
        for begin in range(0, len(chunks), 32):
            yield pb.AppendRequest(attempt=1, worker_index=0, chunks=chunks[begin : begin + 32])

    def _report(self, second: int) -> dict[str, Any]:
        return {
            "step": second, "totalSteps": self._seconds, "samples": 32, "loss": 4 / (second + 1), "unit": "images",
            "metrics": {"accuracy": second / self._seconds}, "time": self._start + second, "inputWait": 0.1,
        }  # fmt: skip


def _chunk(stream: Stream, rank: int, before: int, lines: list[str]) -> Any:
    data = "".join(lines).encode()
    return pb.Chunk(kind=int(stream), rank=rank, first=before + 1, lines=len(lines), data=data)


async def _watch(tab: Tab, worker: Worker, pid: int) -> dict[str, Any]:
    heap, launcher, page = 0, 0, 0
    while not worker.done:
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


async def measure(ranks: int, seconds: int, folder: Path) -> dict[str, Any]:
    """Feed, look, and say what it took."""
    job = GangProcesses(folder, 1, ranks, RINGTRAIN_STATUS_TOKEN=SECRET, RINGTRAIN_TIMEOUT="600")
    try:
        launcher = job.launcher()
        until("it listens", lambda: "status on port" in launcher.err())
        before = psutil.Process(launcher.pid).memory_info().rss
        stub = coordinator_pb2_grpc.CoordinatorStub(grpc.insecure_channel(f"127.0.0.1:{job.control_port}"))
        worker = Worker(stub, ranks, seconds)
        worker.begin()
        base = f"http://127.0.0.1:{job.status_port}/"
        async with open_browser(folder / "browser") as tab:
            await tab.ask("Performance.enable")
            await tab.visit(f"{base}?token={page_token(SECRET)}", ends_at=base)
            await tab.until("document.getElementById('link').innerText === '● live'")
            begun = time.monotonic()
            feeding = asyncio.create_task(asyncio.to_thread(worker.feed))
            found = await _watch(tab, worker, launcher.pid)
            await feeding
            took = time.monotonic() - begun
            looked = time.monotonic()
            query = (
                "fetch('page/log?rank=7&text=nowhere').then(answer => answer.json()).then(found => found.before)"
            )
            await tab.value(query)
            searched = time.monotonic() - looked
            return {
                "ranks": ranks,
                "seconds_of_lines": seconds,
                "lines": ranks * seconds * LINES_PER_S,
                "job_log_mb": round((job.logs / "job.log").stat().st_size / 1e6, 1),
                "took_s": round(took, 1),
                "launcher_rss_before_mib": round(before / 2**20, 1),
                **found,
                "search_of_16_mib_s": round(searched, 2),
                "console_errors": tab.complaints,
            }
    finally:
        job.close()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3600)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(asked.ranks, asked.seconds, Path(folder)))
    text = json.dumps(found, indent=1) + "\n"
    (Path(__file__).parent / "results" / "page.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
