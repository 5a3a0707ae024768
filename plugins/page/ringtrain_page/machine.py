"""Use of CPU, memory, network, disk and GPUs in one attempt, collected from agents' samples in bounded memory."""

from dataclasses import dataclass, field
from typing import Any

from ringtrain_job.logs.samples import MachineSample, RankUse
from ringtrain_page.curves import PageCurve

# Limit of listed workers: those with the fullest memory.
_MOST_WORKERS = 64
# Interval of totals: they read all workers, so they are not computed for each sample.
_EVERY_S = 1.0


@dataclass
class PageMachines:
    """Resource use of workers and ranks: newest samples, maxima, and curves over time.

    `latest`: newest sample by worker. `most`: highest memory use by worker. `ranks`: CPU cores that each rank used
    last, and its highest resident memory in bytes.
    """

    latest: dict[int, MachineSample] = field(default_factory=dict)
    most: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, RankUse] = field(default_factory=dict)
    first: float | None = None
    added: float = 0.0
    _curves: dict[str, PageCurve] = field(default_factory=dict)

    def add(self, sample: MachineSample) -> None:
        """Add one sample of a worker's machine; extend the curves at most once a second."""
        self.first = sample.time if self.first is None else self.first
        self.latest[sample.worker] = sample
        self.most[sample.worker] = max(sample.memory, self.most.get(sample.worker, 0.0))
        for rank, use in sample.ranks.items():
            before = self.ranks.get(rank, use)
            self.ranks[rank] = RankUse(use.cpu, max(use.rss, before.rss))
        if sample.time - self.added < _EVERY_S:
            return
        self.added = sample.time
        for name, value in self.totals().items():
            self._curves.setdefault(name, PageCurve()).add(max(0.0, sample.time - self.first), value)

    def totals(self) -> dict[str, float]:
        """Return the job's current resource use by name of the figure.

        CPU and network are sums, GPU use is a mean. Memory and disk wait are the highest value of any worker or GPU.
        """
        all_ = list(self.latest.values())
        if not all_:
            return {}
        found = {
            "CPU, cores": sum(use.cpu for one in all_ for use in one.ranks.values()),
            "memory, % of limit": 100 * max(one.memory / one.limit if one.limit else 0.0 for one in all_),
            "network, MB/s": sum(one.received + one.sent for one in all_) / 1e6,
        }
        waits = [one.disk_wait for one in all_ if one.disk_wait is not None]
        gpus = [gpu for one in all_ for gpu in one.gpus]
        if waits:
            found["disk wait, %"] = 100 * max(waits)
        if gpus:
            found["GPU busy, %"] = 100 * sum(gpu.busy for gpu in gpus) / len(gpus)
            found["GPU memory, %"] = 100 * max(gpu.memory / gpu.limit if gpu.limit else 0.0 for gpu in gpus)
        return found

    def document(self) -> dict[str, Any] | None:
        """Return the data of the page's machine section; None before the first sample."""
        if not self.latest:
            return None
        drawn = [(name, curve.means()) for name, curve in self._curves.items()]
        fullest = sorted(self.latest.values(), key=lambda one: one.memory / (one.limit or 1.0), reverse=True)
        listed = sorted(fullest[:_MOST_WORKERS], key=lambda one: one.worker)
        return {
            "curves": [{"name": name, "of": "s", "points": points} for name, points in drawn if len(points) > 1],
            "ranks": {rank: vars(use) for rank, use in self.ranks.items()},
            "workers": [{**one.document(), "most": self.most[one.worker]} for one in listed],
        }
