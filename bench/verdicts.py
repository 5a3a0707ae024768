"""The figures that the project promises, from one run's results."""

from dataclasses import asdict, dataclass
from typing import Any

from bench.cases import (
    FRONT,
    KIB,
    LINE_BYTES_PER_S,
    MIB,
    OVERLAP_APIS,
    STEP_BYTES,
    TENSORFLOW_LINE,
    TORCH_OPTIMIZERS,
    overlap_of,
)

Results = dict[str, Any]
ONE_MACHINE, GIGABIT = "one machine", "1 Gbit/s between hosts"
ENCRYPTED = "encrypted, one machine"
BIG: dict[str, Any] = {"kind": "allreduce", "nbytes": 64 * MIB}
SMALL: dict[str, Any] = {"kind": "allreduce", "nbytes": 4 * KIB}


@dataclass(frozen=True)
class Row:
    """`asked`, `aim`: bounds, or None where there is none. `higher`: whether more is better. `figure`: None where
    its points were not measured."""

    name: str
    figure: float | None
    asked: float | None
    aim: float | None
    higher: bool = True

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "not measured"
        if self.asked is None and self.aim is None:
            return "no bound"
        if self._holds(self.aim):
            return "aim reached"
        if self.asked is None:
            return "short of the aim"
        return "pass" if self._holds(self.asked) else "short"

    def _holds(self, bound: float | None) -> bool:
        if bound is None or self.figure is None:
            return False
        return self.figure >= bound if self.higher else self.figure <= bound


def verdicts(results: Results) -> list[dict[str, Any]]:
    """Rows of the table, those that were not measured too."""
    look = _Lookup(results)
    rows = [*_one_pod(look), *_line(look), *_grpc(look), *_steps(look), *_rest(look), *_encrypted(look)]
    return [asdict(row) | {"verdict": row.verdict} for row in rows]


class _Lookup:
    """Medians by case, ranks, what and contender."""

    def __init__(self, results: Results) -> None:
        self._points = results["points"]
        self.kernels = results["kernels"]

    def point(self, case: str, ranks: int, **what: Any) -> dict[str, Any]:
        for point in self._points:
            if (point["case"], point["ranks"], point["what"]) == (case, ranks, what):
                return dict(point)
        return {}

    def summary(self, case: str, ranks: int, contender: str, **what: Any) -> dict[str, float] | None:
        found: dict[str, float] | None = self.point(case, ranks, **what).get("contenders", {}).get(contender)
        return found

    def time(self, case: str, ranks: int, contender: str, **what: Any) -> float | None:
        found = self.summary(case, ranks, contender, **what)
        return None if found is None else found["median_s"]

    def faster(self, case: str, ranks: int, ours: str, peer: str, **what: Any) -> float | None:
        """Return the peer's median time divided by ours; None if one of them was not measured."""
        return _ratio(self.time(case, ranks, peer, **what), self.time(case, ranks, ours, **what))


def _one_pod(look: _Lookup) -> list[Row]:
    rows = []
    for ranks in (2, 4):
        over_mpi = look.faster(ONE_MACHINE, ranks, "ringtrain-shm", "mpi-shm", **BIG)
        rows.append(
            Row(f"allreduce of 64 MiB, one pod, {ranks} ranks, speed over Open MPI shared memory", over_mpi, 2.5, None)
        )
        floor = look.faster(ONE_MACHINE, ranks, "copy", "ringtrain-shm", **BIG)
        rows.append(
            Row(f"allreduce of 64 MiB, one pod, {ranks} ranks, time over one copy per rank", floor, None, 1.3, False)
        )
    gloo, mpi = (look.faster(ONE_MACHINE, 2, "ringtrain-shm", peer, **SMALL) for peer in ("gloo", "mpi-shm"))
    rows.append(Row("allreduce of 4 KiB, one pod, 2 ranks, speed over gloo", gloo, 1.0, None))
    rows.append(Row("allreduce of 4 KiB, one pod, 2 ranks, speed over Open MPI shared memory", mpi, None, 1.0))
    return rows


def _encrypted(look: _Lookup) -> list[Row]:
    """Told, and not asked for: the cost follows from how fast the machine encrypts."""
    rows = []
    for what, name in (
        (SMALL, "allreduce of 4 KiB"),
        (BIG, "allreduce of 64 MiB"),
        ({"kind": "step"}, "step of 25.6 M parameters"),
    ):
        seconds = [look.time(ENCRYPTED, 2, f"ringtrain-{how}", **what) for how in ("encrypted", "grpc")]
        rows.append(Row(f"{name}, gRPC, 2 ranks, encrypted, time over plain", _ratio(*seconds), None, None, False))
    return rows


def _line(look: _Lookup) -> list[Row]:
    rows = []
    for ranks in (2, 4):
        for size in (16 * MIB, 64 * MIB):
            what = {"kind": "allreduce", "nbytes": size}
            seconds = look.time(GIGABIT, ranks, "ringtrain-grpc", **what)
            line_s = 2 * (ranks - 1) / ranks * size / LINE_BYTES_PER_S
            name = f"allreduce of {size >> 20} MiB at 1 Gbit/s, {ranks} hosts"
            rows.append(Row(f"{name}, share of the link's speed", _ratio(line_s, seconds), 0.95, None))
            for peer, title in (("gloo", "gloo"), ("mpi-tcp", "Open MPI")):
                ratio = look.faster(GIGABIT, ranks, "ringtrain-grpc", peer, **what)
                rows.append(Row(f"{name}, speed over {title}", ratio, None, 1.0))
    return rows


def _grpc(look: _Lookup) -> list[Row]:
    rows = []
    for ranks, least in ((2, 0.8), (4, 0.65)):
        ratio = look.faster(ONE_MACHINE, ranks, "ringtrain-grpc", "gloo", **BIG)
        rows.append(
            Row(f"allreduce of 64 MiB over gRPC on loopback, {ranks} ranks, speed over gloo", ratio, least, 1.0)
        )
    for ranks in (2, 4):
        for transport in ("shm", "grpc"):
            ours = f"ringtrain-{transport}"
            many, one = (
                look.time(ONE_MACHINE, ranks, ours, kind="allreduce_many", fused=fused) for fused in (False, True)
            )
            name = f"allreduce of 161 tensors of ResNet-50, time over one tensor, {transport}, {ranks} ranks"
            rows.append(Row(name, _ratio(many, one), 1.1, 1.03, False))
    return rows


def _steps(look: _Lookup) -> list[Row]:
    rows = []
    for ranks in (2, 4):
        for transport, least, aim in (("shm", 3.0, 5.0), ("grpc", 1.0, 1.3)):
            ratio = look.faster(ONE_MACHINE, ranks, f"ringtrain-{transport}", "gloo", kind="step")
            where = "one pod" if transport == "shm" else "gRPC"
            rows.append(Row(f"step of 25.6 M parameters, {where}, {ranks} ranks, speed over DDP", ratio, least, aim))
    for ranks in (2, 4):
        made = look.faster(ONE_MACHINE, ranks, "ringtrain-shm", "gloo", kind="step", in_place=True)
        rows.append(Row(f"step, gradients made in place, one pod, {ranks} ranks, speed over DDP", made, None, 5.0))
    pods = look.faster(ONE_MACHINE, 4, "ringtrain-pods", "gloo", kind="step")
    rows.append(Row("step of 25.6 M parameters, 2 pods of 2 on loopback, speed over DDP", pods, None, 1.0))
    aims = {("distributed", "shm"): (2.0, 2.0), ("distributed", "grpc"): (1.1, 1.0)}
    aims |= {("host", "shm"): (2.5, 2.5), ("host", "grpc"): (1.2, 1.05)}
    aims |= {("host-overlap", "shm"): (3.0, 3.0), ("host-overlap", "grpc"): (1.2, 1.1)}
    for (optimizer, transport), of_two_and_four in aims.items():
        for ranks, aim in zip((2, 4), of_two_and_four, strict=True):
            what = {"kind": "pytorch", "optimizer": optimizer}
            ratio = look.faster(ONE_MACHINE, ranks, f"ringtrain-{transport}", "gloo", **what)
            where = "one pod" if transport == "shm" else "gRPC"
            name = f"PyTorch, {TORCH_OPTIMIZERS[optimizer]}, 161 parameters, {where}, {ranks} ranks, speed over DDP"
            rows.append(Row(name, ratio, None, aim))
    for api, name in (("tape", "tape"), ("keras", "Keras 2"), ("keras-host", "Keras 2, HostOptimizer")):
        for where, transport in (("one pod", "shm"), ("gRPC", "grpc")):
            for ranks in (2, 4):
                what = {"kind": "tensorflow", "api": api}
                case = f"TensorFlow, {api}"
                ratio = look.faster(case, ranks, f"ringtrain-{transport}", "tensorflow", **what)
                row = f"TensorFlow, {name}, 161 parameters, {where}, {ranks} ranks, speed over TensorFlow's strategy"
                rows.append(Row(row, ratio, None, 1.0))
    for api, name in (("grad", "value_and_grad"), ("host", "HostOptimizer")):
        for where, transport in (("one pod", "shm"), ("gRPC", "grpc")):
            ratio = look.faster("JAX", 2, f"ringtrain-{transport}", "jax", kind="jax", api=api)
            row = f"JAX, {name}, 161 parameters, {where}, 2 ranks, speed over jax.distributed with gloo"
            rows.append(Row(row, ratio, None, 1.0))
    for api, name in zip(OVERLAP_APIS, ("tape", "Keras 2", "HostStrategy", "tf.compat.v1"), strict=True):
        paced, update = (
            look.time(TENSORFLOW_LINE, 2, "ringtrain-grpc", **overlap_of(api, alone)) for alone in (False, True)
        )
        computed = None if update is None else overlap_of(api)["backward_s"] + update
        row = f"TensorFlow, {name}, backward pass and transfer equally long, time over backward and update alone"
        rows.append(Row(row, _ratio(paced, computed), 1.2, 1.1, False))
    kernels = look.kernels
    fused = _ratio(kernels["torch-fused"]["median_s"], kernels["ringtrain"]["median_s"]) if kernels else None
    rows.append(Row("AdamW in one thread, speed over PyTorch's fused AdamW", fused, 0.9, 1.1))
    backward_s = STEP_BYTES / LINE_BYTES_PER_S
    paced = look.time(GIGABIT, 2, "ringtrain-grpc", kind="step", backward_s=backward_s)
    longer = "step, backward pass and transfer equally long, time over the longer of the two"
    rows.append(Row(longer, _ratio(paced, backward_s), 1.15, 1.05, False))
    ahead = look.faster(GIGABIT, 2, "ringtrain-grpc", "gloo", **FRONT)
    rows.append(
        Row("four steps at 1 Gbit/s, backward 0.4 s and forward 0.2 s, 2 hosts, speed over DDP", ahead, None, 1.1)
    )
    return rows


def _rest(look: _Lookup) -> list[Row]:
    rows = []
    for ranks in (2, 4):
        answers = look.point(ONE_MACHINE, ranks, kind="state").get("answers", {}).get("ringtrain-shm")
        share = max(a["held"] / a["whole"] * ranks for a in answers) if answers else None
        rows.append(
            Row(f"optimizer state of the rank with most of it, {ranks} ranks, over 1/{ranks}", share, 1.02, None, False)
        )
    for ranks in (2, 4):
        found = look.summary(ONE_MACHINE, ranks, "ringtrain-grpc", **BIG)
        sent = None if found is None else found["wire_bytes"] / (2 * (ranks - 1) * 64 * MIB)
        rows.append(Row(f"bytes sent per rank over 2(N - 1)/N of the tensor, {ranks} ranks", sent, 1.01, None, False))
    for ranks in (2, 4):
        plain = look.time(GIGABIT, ranks, "ringtrain-grpc", **BIG)
        half = look.time(GIGABIT, ranks, "ringtrain-grpc", kind="compressed", nbytes=64 * MIB, compression="bf16")
        name = f"allreduce of 64 MiB as bf16 at 1 Gbit/s, {ranks} hosts, speed over float32"
        rows.append(Row(name, _ratio(plain, half), 1.85, None))
    return rows


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b == 0 else a / b
