"""Verdicts in the benchmark's table."""

from typing import Any

import pytest

from bench.cases import CASES, MIB
from bench.verdicts import Row, verdicts


@pytest.mark.parametrize(
    ("figure", "asked", "aim", "higher", "verdict"),
    [
        (None, 1.0, 2.0, True, "not measured"),
        (2.0, 1.0, 2.0, True, "aim reached"),
        (1.0, 1.0, 2.0, True, "pass"),
        (0.99, 1.0, 2.0, True, "short"),
        (1.1, 1.1, 1.03, False, "pass"),
        (1.11, 1.1, 1.03, False, "short"),
        (1.0, None, 1.3, False, "aim reached"),
        (1.4, None, 1.3, False, "short of the aim"),
        (1.0, 1.0, None, True, "pass"),
    ],
)
def test_a_row_is_held_against_its_bounds(
    figure: float | None, asked: float | None, aim: float | None, higher: bool, verdict: str
) -> None:
    """Bounds themselves are good enough."""
    assert Row("row", figure, asked, aim, higher).verdict == verdict


def test_what_was_not_measured_is_said() -> None:
    rows = verdicts({"points": [], "kernels": {}})
    assert {row["verdict"] for row in rows} == {"not measured"}
    assert len({row["name"] for row in rows}) == len(rows)


def _point(case: str, ranks: int, what: dict[str, Any], **median_s: float) -> dict[str, Any]:
    contenders = {name.replace("_", "-"): {"median_s": s, "wire_bytes": 128e6} for name, s in median_s.items()}
    return {"case": case, "ranks": ranks, "what": what, "contenders": contenders}


def test_figures_are_ratios_of_one_point() -> None:
    big = {"kind": "allreduce", "nbytes": 64 * MIB}
    points = [
        _point("one machine", 2, {"kind": "step"}, ringtrain_shm=0.02, ringtrain_grpc=0.1, gloo=0.08),
        _point("one machine", 2, big, ringtrain_shm=0.013, copy=0.01, mpi_shm=0.039),
        _point("1 Gbit/s between hosts", 2, big, ringtrain_grpc=64 * MIB / 125e6 / 0.5),
    ]
    answers = {"ringtrain-shm": [{"held": 50, "whole": 100}, {"held": 51, "whole": 100}]}
    points.append({"case": "one machine", "ranks": 2, "what": {"kind": "state"}, "answers": answers})
    kernels = {"torch-fused": {"median_s": 0.9}, "ringtrain": {"median_s": 1.0}}
    found = {row["name"]: row["figure"] for row in verdicts({"points": points, "kernels": kernels})}
    assert found["step of 25.6 M parameters, one pod, 2 ranks, speed over DDP"] == pytest.approx(4.0)
    assert found["step of 25.6 M parameters, gRPC, 2 ranks, speed over DDP"] == pytest.approx(0.8)
    assert found["allreduce of 64 MiB, one pod, 2 ranks, speed over Open MPI shared memory"] == pytest.approx(3.0)
    assert found["allreduce of 64 MiB, one pod, 2 ranks, time over one copy per rank"] == pytest.approx(1.3)
    assert found["allreduce of 64 MiB at 1 Gbit/s, 2 hosts, share of the link's speed"] == pytest.approx(0.5)
    assert found["optimizer state of the rank with most of it, 2 ranks, over 1/2"] == pytest.approx(1.02)
    assert found["AdamW in one thread, speed over PyTorch's fused AdamW"] == pytest.approx(0.9)


def test_a_part_of_the_benchmark_starts_only_who_takes_part() -> None:
    parts = [case.only("2 ranks: step") for case in CASES]
    found = [case.name for case in parts if case.work]
    assert found == ["one machine", "1 Gbit/s between hosts", "encrypted, one machine"]
    assert set(parts[0].contenders) == {"ringtrain-shm", "ringtrain-grpc", "gloo"}
    assert all(what["kind"] == "step" for case in parts for what, _ in case.work)


def test_every_point_has_a_title_of_its_own() -> None:
    titles = [case.title(what) for case in CASES for what in [*(w for w, _ in case.work), *case.questions]]
    assert len(set(titles)) == len(titles)


def test_all_cases_together_fit_into_the_time() -> None:
    """25 minutes, with half a minute a case for contenders to start, and one for the rest."""
    seconds = sum(rounds.seconds for case in CASES for _, rounds in case.work)
    assert seconds + 30 * len(CASES) + 60 < 25 * 60
