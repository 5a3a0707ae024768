"""The figures that the project promises, from one run's results."""

from typing import Any

from bench.cases import KIB, LINE_BYTES_PER_S, MIB, STEP_BYTES

Results = dict[str, Any]
ONE_MACHINE, GIGABIT = "one machine", "1 Gbit/s between hosts"


def verdicts(results: Results) -> list[dict[str, Any]]:
    """Rows of the table. `higher`: whether more is better. A row whose points are missing is left out."""
    return [row for row in _rows(_Lookup(results)) if row["figure"] is not None]


class _Lookup:
    """Medians by case, ranks, what and contender."""

    def __init__(self, results: Results) -> None:
        self._points = results["points"]
        self.kernels = results["kernels"]

    def summary(self, case: str, ranks: int, contender: str, **what: Any) -> dict[str, float] | None:
        for point in self._points:
            if (point["case"], point["ranks"], point["what"]) == (case, ranks, what):
                found: dict[str, float] | None = point["contenders"].get(contender)
                return found
        return None

    def time(self, case: str, ranks: int, contender: str, **what: Any) -> float | None:
        found = self.summary(case, ranks, contender, **what)
        return None if found is None else found["median_s"]

    def faster(self, case: str, ranks: int, ours: str, peer: str, **what: Any) -> float | None:
        """How many times faster ours is than the peer."""
        return _ratio(self.time(case, ranks, peer, **what), self.time(case, ranks, ours, **what))


def _rows(look: _Lookup) -> list[dict[str, Any]]:
    big: dict[str, Any] = {"kind": "allreduce", "nbytes": 64 * MIB}
    small: dict[str, Any] = {"kind": "allreduce", "nbytes": 4 * KIB}
    rows = []
    for ranks in (2, 4):
        shm = look.faster(ONE_MACHINE, ranks, "ringtrain-shm", "mpi-shm", **big)
        rows.append(_row(f"64 MiB, one pod, {ranks} ranks, over Open MPI shared memory", shm, 2.5))
        floor = look.faster(ONE_MACHINE, ranks, "copy", "ringtrain-shm", **big)
        rows.append(_row(f"the same, time over one copy of the tensor per rank, {ranks} ranks", floor, 1.3, False))
    rows.append(
        _row(
            "4 KiB, one pod, 2 ranks, over gloo",
            look.faster(ONE_MACHINE, 2, "ringtrain-shm", "gloo", **small),
            1.0,
        )
    )
    for ranks in (2, 4):
        for size in (16 * MIB, 64 * MIB):
            rows.append(_line_share(look, ranks, size))
            for peer in ("gloo", "mpi-tcp"):
                ratio = look.faster(GIGABIT, ranks, "ringtrain-grpc", peer, kind="allreduce", nbytes=size)
                rows.append(_row(f"{size >> 20} MiB at 1 Gbit/s, {ranks} hosts, over {peer}", ratio, 1.0))
    for ranks, least in ((2, 0.8), (4, 0.65)):
        ratio = look.faster(ONE_MACHINE, ranks, "ringtrain-grpc", "gloo", **big)
        rows.append(_row(f"64 MiB over gRPC on loopback, {ranks} ranks, over gloo", ratio, least))
    for ranks in (2, 4):
        for transport in ("shm", "grpc"):
            many, one = (
                look.time(ONE_MACHINE, ranks, f"ringtrain-{transport}", kind="allreduce_many", fused=fused)
                for fused in (False, True)
            )
            name = f"161 tensors of ResNet-50, time over one tensor, {transport}, {ranks} ranks"
            rows.append(_row(name, _ratio(many, one), 1.1, False))
        for transport, least in (("shm", 3.0), ("grpc", 1.0)):
            ratio = look.faster(ONE_MACHINE, ranks, f"ringtrain-{transport}", "gloo", kind="step")
            rows.append(_row(f"step of 25.6 M parameters, {transport}, {ranks} ranks, over DDP", ratio, least))
    rows.append(_row("AdamW in one thread, over PyTorch's fused", _kernels(look), 0.9))
    backward_s = STEP_BYTES / LINE_BYTES_PER_S
    paced = look.time(GIGABIT, 2, "ringtrain-grpc", kind="step", backward_s=backward_s)
    rows.append(
        _row("step, backward and wire equally long, over the longer", _ratio(paced, backward_s), 1.15, False)
    )
    rows += [_payload(look, ranks) for ranks in (2, 4)]
    for ranks in (2, 4):
        plain = look.time(GIGABIT, ranks, "ringtrain-grpc", **big)
        half = look.time(GIGABIT, ranks, "ringtrain-grpc", kind="compressed", nbytes=64 * MIB, compression="bf16")
        rows.append(_row(f"64 MiB as bf16 at 1 Gbit/s, {ranks} hosts, over float32", _ratio(plain, half), 1.85))
    return rows


def _line_share(look: _Lookup, ranks: int, size: int) -> dict[str, Any]:
    seconds = look.time(GIGABIT, ranks, "ringtrain-grpc", kind="allreduce", nbytes=size)
    share = None if seconds is None else 2 * (ranks - 1) / ranks * size / seconds / LINE_BYTES_PER_S
    return _row(f"{size >> 20} MiB at 1 Gbit/s, {ranks} hosts, share of the line", share, 0.95)


def _payload(look: _Lookup, ranks: int) -> dict[str, Any]:
    found = look.summary(ONE_MACHINE, ranks, "ringtrain-grpc", kind="allreduce", nbytes=64 * MIB)
    sent = None if found is None else found["wire_bytes"] / (2 * (ranks - 1) * 64 * MIB)
    return _row(f"bytes on the wire over 2(N - 1)/N of the tensor, {ranks} ranks", sent, 1.01, False)


def _kernels(look: _Lookup) -> float | None:
    kernels = look.kernels
    return _ratio(kernels["torch-fused"]["median_s"], kernels["ringtrain"]["median_s"]) if kernels else None


def _row(name: str, figure: float | None, least: float, higher: bool = True) -> dict[str, Any]:
    reached = figure is not None and (figure >= least if higher else figure <= least)
    return {"name": name, "figure": figure, "asked": least, "higher": higher, "reached": reached}


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b == 0 else a / b
