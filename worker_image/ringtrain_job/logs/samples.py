"""What a worker's agent sees of its machine, as it travels to the launcher and is kept in `machine.jsonl`."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RankUse:
    """`cpu`: cores that the rank's processes use. `rss`: their resident bytes; shared pages count in each."""

    cpu: float
    rss: float


@dataclass(frozen=True)
class GpuUse:
    """`busy`: from 0 to 1, as the driver says. `memory`, `limit`: bytes in use, and that there are."""

    busy: float
    memory: float
    limit: float


@dataclass(frozen=True)
class MachineSample:
    """One worker at `time`. `memory`: bytes in use of `limit`, without page cache that can be given back: those of
    the container, or of the machine where the container has no limit. `received`, `sent`: bytes a second, without
    loopback. `disk_wait`: part of the time in which something waited for a disk; None: the kernel does not say."""

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
        """As JSON has it."""
        return asdict(self)


def read_sample(value: object) -> MachineSample | None:
    """The sample in a JSON `value`; None where it is none, or has a number below 0 or without an end."""
    try:
        return _read_sample_field(value) if isinstance(value, dict) else None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def read_samples(path: Path) -> Iterator[MachineSample]:
    """The samples in a file, without a line that was cut short; none where there is no file."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            with suppress(ValueError):
                if (sample := read_sample(json.loads(line))) is not None:
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
    """`size` as people say it: 7.9 GiB, 512 MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
