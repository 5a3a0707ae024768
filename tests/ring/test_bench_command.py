"""`ringtrain bench`: one point, for a person or for a program."""

import json

import click
import pytest
from click.testing import CliRunner

from ringtrain.bench_rank import quartiles
from ringtrain_job.cli.bench import parse_size
from ringtrain_job.cli.main import main


@pytest.mark.parametrize(("transport", "path"), [("shm", "SharedMemory"), ("grpc", "Exchange")])
def test_a_point_as_json(transport: str, path: str) -> None:
    """Over the transport that was asked for, with spread, bandwidth and CPU time."""
    arguments = ["bench", "allreduce", "--np", "2", "--size", "64KiB", "--repetitions", "5", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--transport", transport])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["ranks"], result["bytes"], result["path"], result["repetitions"]) == (2, 65536, path, 5)
    assert 0 < result["quartile1_s"] <= result["median_s"] <= result["quartile3_s"]
    assert result["bus_bytes_per_s"] == pytest.approx(65536 / result["median_s"])
    assert result["cpu_s_per_gb"] > 0


@pytest.mark.parametrize(
    ("times", "found"),
    [([2.0], [2, 2, 2]), ([1.0, 9.0], [3, 5, 7]), ([1.0, 2.0, 4.0, 8.0, 16.0], [2, 4, 8])],
    ids=["one", "two", "five"],
)
def test_quartiles(times: list[float], found: list[float]) -> None:
    """Between the least and the greatest: no time is below 0."""
    assert quartiles(times) == found


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4KiB", 4096), ("1 MiB", 1 << 20), ("10", 8), ("1", 4), ("2GiB", 2 << 30)]
)
def test_sizes(text: str, nbytes: int) -> None:
    """Whole elements of four bytes, at least one."""
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "4MB", "-1", "0", "1.5KiB"])
def test_a_size_that_is_none_is_named(text: str) -> None:
    with pytest.raises(click.UsageError, match="--size is"):
        parse_size(text)
