"""The launcher's `/metrics`: values of `/status` as Prometheus metrics (docs/reference/metrics.md)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ringtrain_job.control.model import RankPhase

# Limits on the series by rank and by user metric. Larger jobs export only the job's series.
MOST_RANKS: Final = 64
MOST_OWN_METRICS: Final = 64
PARTS: Final = ("input", "compute", "reduction", "update")
PHASES: Final = ("Waiting", "Running", "Succeeded", "Failed")

Status = Mapping[str, Any]
# Labels and value of each sample: no label, or the value of one label.
Samples = Iterable[tuple[Sequence[str], float | None]]


class StatusCollector(Collector):
    """Prometheus collector that computes metrics from `/status` on each request.

    Every series has the labels `job_namespace` and `job_name`, because Prometheus itself uses `namespace` and `job`.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics of this launcher."""
        status = self._status()
        family = _MetricFamilies(str(status.get("namespace", "")), str(status.get("job", "")))
        yield from _gang_metrics(family, status)
        yield from _progress_metrics(family, status)
        yield from _step_time_metrics(family, status)
        yield from _rank_metrics(family, status["ranks"])
        yield from _machine_metrics(family, status.get("machines") or [])
        if status.get("data") is not None:
            yield from _data_worker_metrics(family, status["data"])
        if "elastic" in status:
            yield from _elastic_metrics(family, status["elastic"])


class _MetricFamilies:
    """Factory of metric families with the labels of one job. `by`: names of additional labels."""

    def __init__(self, namespace: str, job: str) -> None:
        self._job = [namespace, job]

    def gauge(self, name: str, text: str, value: float | None) -> Metric:
        return self.gauges(name, text, (), [((), value)])

    def gauges(self, name: str, text: str, by: Sequence[str], samples: Samples) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["job_namespace", "job_name", *by])
        for values, value in samples:
            family.add_metric([*self._job, *values], math.nan if value is None else value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["job_namespace", "job_name"])
        family.add_metric(self._job, value)
        return family


def _gang_metrics(family: _MetricFamilies, status: Status) -> Iterable[Metric]:
    phase, states = status.get("phase"), [rank["state"] for rank in status["ranks"]]
    phases = [((name,), float(name == phase)) for name in PHASES]
    yield family.gauges("ringtrain_phase", "1 for the phase that the attempt is in.", ["phase"], phases)
    yield family.gauge("ringtrain_world_size", "Ranks of the gang.", status["worldSize"])
    yield family.gauge("ringtrain_attempt", "Attempt that this launcher runs.", status["attempt"])
    registered = sum(worker["registered"] for worker in status["workers"])
    yield family.gauge("ringtrain_workers", "Workers that the attempt has.", len(status["workers"]))
    yield family.gauge("ringtrain_workers_registered", "Agents that have registered.", registered)
    counts = [((state.value,), states.count(state.value)) for state in RankPhase]
    yield family.gauges("ringtrain_ranks", "Ranks by state.", ["state"], counts)
    logs = status["logs"]
    yield family.counter("ringtrain_log_lines", "Log lines in the files.", logs["lines"])
    yield family.counter("ringtrain_log_lines_dropped", "Log lines agents dropped.", logs["dropped"])
    if "shipping" in logs:
        yield from _shipping_metrics(family, logs["shipping"])
    since = status.get("runningSince")
    yield family.gauge("ringtrain_running_since_timestamp_seconds", "When all workers had registered.", since)


def _shipping_metrics(family: _MetricFamilies, shipping: Status) -> Iterable[Metric]:
    text = "Bytes of logs that the object store does not have yet."
    yield family.gauge("ringtrain_log_unshipped_bytes", text, shipping["pendingBytes"])
    text = "1 while the object store does not take logs."
    yield family.gauge("ringtrain_log_shipping_failing", text, float(shipping["problem"] is not None))


def _progress_metrics(family: _MetricFamilies, status: Status) -> Iterable[Metric]:
    progress = status["progress"] or {}
    yield family.gauge("ringtrain_step", "Lowest step of any rank.", progress.get("step"))
    yield family.gauge("ringtrain_total_steps", "Steps of the whole training.", progress.get("totalSteps"))
    speed = progress.get("samplesPerSecond")
    yield family.gauge("ringtrain_samples_per_second", "Mean speed of the gang in this attempt.", speed)
    samples = progress.get("samples") or 0.0
    yield family.counter("ringtrain_samples", "Samples that all ranks have reported.", samples)
    not_finite = progress.get("notFinite") or {}
    loss = float(not_finite["loss"]["value"]) if "loss" in not_finite else progress.get("loss")
    yield family.gauge("ringtrain_loss", "Mean loss of the ranks.", loss)
    last = status["lastProgressTime"]
    yield family.gauge("ringtrain_last_progress_timestamp_seconds", "When the last report came.", last)
    own = list((progress.get("metrics") or {}).items())[:MOST_OWN_METRICS]
    values = [((name,), value) for name, value in own]
    text = "Metrics that the training code reports itself, of the slowest rank."
    yield family.gauges("ringtrain_reported_value", text, ["metric"], values)


def _step_time_metrics(family: _MetricFamilies, status: Status) -> Iterable[Metric]:
    mean, longest = status.get("stepTime") or {}, status.get("longestWork") or {}
    text = "Where a step's time goes, by part: mean of the ranks, over their newest reports."
    of_job = [((part,), mean[part]) for part in PARTS if part in mean]
    yield family.gauges("ringtrain_step_time_seconds", text, ["part"], of_job)
    text = "How much longer the rank that works longest in a step does than the others, as a part of a step."
    yield family.gauge("ringtrain_straggler_ratio", text, longest.get("part"))
    ranks = status["ranks"] if len(status["ranks"]) <= MOST_RANKS else []
    by_rank = [
        ((str(rank["rank"]), part), rank["stepTime"][part])
        for rank in ranks
        for part in PARTS
        if part in (rank.get("stepTime") or {})
    ]
    text = "Where the rank's time goes in a step, by part, over its newest reports."
    yield family.gauges("ringtrain_rank_step_time_seconds", text, ["rank", "part"], by_rank)


def _rank_metrics(family: _MetricFamilies, ranks: Sequence[Status]) -> Iterable[Metric]:
    lags = [rank["lag"] for rank in ranks if rank.get("lag") is not None]
    text = "How much later than the first rank the last one reports a step, over the newest 50 steps."
    yield family.gauge("ringtrain_lag_seconds", text, max(lags, default=None))
    if len(ranks) > MOST_RANKS:
        return

    def each(key: str) -> Samples:
        return [((str(rank["rank"]),), rank[key]) for rank in ranks if rank.get(key) is not None]

    yield family.gauges("ringtrain_rank_step", "Newest step of the rank.", ["rank"], each("step"))
    text = "How much later than the first rank the rank reports a step, over the newest 50 steps."
    yield family.gauges("ringtrain_rank_lag_seconds", text, ["rank"], each("lag"))
    text = "Part of its time that the rank waits for input."
    yield family.gauges("ringtrain_rank_input_wait_ratio", text, ["rank"], each("inputWait"))


def _machine_metrics(family: _MetricFamilies, machines: Sequence[Status]) -> Iterable[Metric]:
    gpus = [gpu for one in machines for gpu in one["gpus"]]
    fullest = max((one["memory"] / one["limit"] for one in machines if one["limit"]), default=None)
    yield family.gauge("ringtrain_memory_ratio", "Memory in use of its limit, of the fullest worker.", fullest)
    cores = sum(use["cpu"] for one in machines for use in one["ranks"].values()) if machines else None
    yield family.gauge("ringtrain_cpu_cores", "Cores that all ranks use.", cores)
    for way in ("received", "sent"):
        rate = sum(one[way] for one in machines) if machines else None
        text = f"Bytes a second that workers have {way}, loopback left out."
        yield family.gauge(f"ringtrain_network_{way}_bytes_per_second", text, rate)
    waits = max((one["disk_wait"] for one in machines if one["disk_wait"] is not None), default=None)
    yield family.gauge("ringtrain_disk_wait_ratio", "Part of the time with a wait for a disk, at most.", waits)
    if gpus:
        busy, full = [gpu["busy"] for gpu in gpus], [gpu["memory"] / gpu["limit"] for gpu in gpus if gpu["limit"]]
        yield family.gauge("ringtrain_gpu_busy_ratio", "Part of the time that GPUs work, mean.", fmean(busy))
        text = "Memory in use of a GPU, of the fullest one."
        yield family.gauge("ringtrain_gpu_memory_ratio", text, max(full, default=None))
    ranks = [(rank, use) for one in machines for rank, use in one["ranks"].items()]
    few = ranks if len(ranks) <= MOST_RANKS else []
    cpu, rss = ([((str(rank),), use[what]) for rank, use in few] for what in ("cpu", "rss"))
    yield family.gauges("ringtrain_rank_cpu_cores", "Cores that the rank's processes use.", ["rank"], cpu)
    text = "Resident bytes of the rank's processes."
    yield family.gauges("ringtrain_rank_memory_bytes", text, ["rank"], rss)


def _data_worker_metrics(family: _MetricFamilies, data: Status) -> Iterable[Metric]:
    text = "Data workers that are alive."
    yield family.gauge("ringtrain_data_workers_registered", text, data["registered"])
    text = "Part of their time that ranks wait for input."
    yield family.gauge("ringtrain_input_wait_ratio", text, data["waitFraction"])


def _elastic_metrics(family: _MetricFamilies, elastic: Status) -> Iterable[Metric]:
    yield family.gauge("ringtrain_formation", "Generation of the running world.", elastic["formation"])
    yield family.counter("ringtrain_recoveries", "Worlds made after a loss.", elastic["recoveries"])
    yield family.counter("ringtrain_lost_steps", "Steps given up by losses.", elastic["lostSteps"])
    text = "From the last loss that was seen until all ranks had met again."
    yield family.gauge("ringtrain_last_recovery_seconds", text, elastic["lastRecoverySeconds"])
    text = "1 while fewer ranks train than are wanted."
    yield family.gauge("ringtrain_degraded", text, float(elastic["degraded"]))
