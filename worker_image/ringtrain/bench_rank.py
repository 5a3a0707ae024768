"""Program of one rank of `ringtrain bench allreduce`."""

import resource
import statistics
import time

import numpy as np

import ringtrain as rt
from ringtrain._core.process_groups.process_sets import group_of

_WARM_UP = 3


def measure(nbytes: int, repetitions: int) -> dict[str, object]:
    """Time allreduces of `nbytes` of float32 over all ranks. Return the summary of this run."""
    rt.init()
    buffer = np.ones(nbytes // 4, np.float32)
    for _ in range(_WARM_UP):
        rt.allreduce_(buffer, rt.Max)
    times, cpu_before = [], _cpu_s()
    for _ in range(repetitions):
        rt.barrier()
        started = time.perf_counter()
        rt.allreduce_(buffer, rt.Max)
        times.append(time.perf_counter() - started)
    cpu_s = sum(rt.allgather_object(_cpu_s() - cpu_before))
    slowest = [max(of_ranks) for of_ranks in zip(*rt.allgather_object(times), strict=True)]
    summary = _summary(slowest, nbytes, cpu_s)
    rt.shutdown()
    return summary


def quartiles(times: list[float]) -> list[float]:
    """Return the first quartile, median and third quartile of `times`."""
    return statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3


def _summary(times: list[float], nbytes: int, cpu_s: float) -> dict[str, object]:
    low, middle, high = quartiles(times)
    return {
        "path": type(group_of().communicator).__name__.removesuffix("Communicator"),
        "median_s": middle,
        "quartile1_s": low,
        "quartile3_s": high,
        "repetitions": len(times),
        "bus_bytes_per_s": 2 * (rt.size() - 1) / rt.size() * nbytes / middle,
        "cpu_s_per_gb": cpu_s / len(times) / nbytes * 1e9,
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
