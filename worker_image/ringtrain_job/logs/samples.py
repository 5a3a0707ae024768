"""Samples of the resource use of workers, which agents send and the launcher stores in `machine.jsonl`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringtrain_job.logs.fields import open_existing, parse_json


@dataclass(frozen=True)
class RankUse:
    """Resource use of one rank and its descendants. `cpu`: cores. `rss`: resident bytes, with shared pages counted per
    process."""

    cpu: float
    rss: float


@dataclass(frozen=True)
class GpuUse:
    """Use of one GPU. `busy`: fraction from 0 to 1, from the driver. `memory`, `limit`: bytes in use, and in total."""

    busy: float
    memory: float
    limit: float


@dataclass(frozen=True)
class MachineSample:
    """Resource use of one worker at `time`, in seconds since the epoch.

    `memory`: bytes in use of `limit`, without reclaimable page cache: of the container, or of the machine if the
    container has no limit. `received`, `sent`: bytes per second, without loopback. `disk_wait`: fraction of the time in
    which a task waited for a disk; None if the kernel does not report it.
    """

    worker: int
    time: float
    memory: float
    limit: float
    received: float
    sent: float
    disk_wait: float | None
    ranks: Mapping[int, RankUse]
    gpus: tuple[GpuUse, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the sample as a JSON object."""
        return asdict(self)


def read_sample(value: object) -> MachineSample | None:
    """Return the sample in the JSON `value`; None if a field is missing, negative or infinite."""
    try:
        return _read_sample_field(value) if isinstance(value, dict) else None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def read_samples(path: Path) -> Iterator[MachineSample]:
    """Yield the samples in the file `path`, without malformed lines; none if the file is missing."""
    file = open_existing(path)
    if file is None:
        return
    with file:
        for line in file:
            if (sample := read_sample(parse_json(line))) is not None:
                yield sample


def _read_sample_field(found: dict[str, Any]) -> MachineSample:
    ranks = {
        int(rank): RankUse(_sample_number(use["cpu"]), _sample_number(use["rss"]))
        for rank, use in found["ranks"].items()
    }
    gpus = tuple(GpuUse(*(_sample_number(gpu[name]) for name in ("busy", "memory", "limit"))) for gpu in found["gpus"])
    wait = found["disk_wait"]
    return MachineSample(
        worker=int(found["worker"]),
        **{name: _sample_number(found[name]) for name in ("time", "memory", "limit", "received", "sent")},
        disk_wait=None if wait is None else _sample_number(wait),
        ranks=ranks,
        gpus=gpus,
    )


def _sample_number(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number < 0:
        raise ValueError(value)
    return number


def sample_in_bytes(size: float) -> str:
    """Return `size` bytes as text, such as "7.9 GiB" or "512 MiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
