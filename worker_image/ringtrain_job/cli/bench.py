"""The command `ringtrain bench allreduce`, which measures an allreduce between ranks on this machine.

`make bench` compares many with other libraries.
"""

import json
import os
import re
from typing import Any

import click

import ringtrain as rt
from ringtrain.bench_rank import measure
from ringtrain.errors import counted
from ringtrain.shared import contract
from ringtrain_job.agent.rank_env import MALLOC

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DEADLINE_S = 600


@click.group()
def bench() -> None:
    """Measure collectives on this machine."""


@bench.command()
@click.option("-np", "--np", "ranks", type=click.IntRange(1, 1024), default=2, show_default=True)
@click.option(
    "--size", default="64MiB", show_default=True, help="Size of the tensor, such as 4KiB, 64MiB, 1GiB or 1000."
)
@click.option("--transport", type=click.Choice(["auto", "shm", "grpc"]), default="auto", show_default=True)
@click.option("--repetitions", type=click.IntRange(1), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
def allreduce(ranks: int, size: str, transport: str, repetitions: int, as_json: bool) -> None:
    """Measure an allreduce between ranks of this machine.

    The tensor is float32. The time is that of the slowest rank.
    """
    nbytes = parse_size(size)
    os.environ.update(MALLOC)  # a rank's C library reads these variables when the rank starts
    env = {contract.ENV_TRANSPORT: transport}
    measured = rt.run(measure, (nbytes, repetitions), np=ranks, env=env, timeout_s=_DEADLINE_S)
    result = {"ranks": ranks, "bytes": nbytes, "transport": transport, **measured[0]}
    click.echo(json.dumps(result) if as_json else _bench_line(result))


def parse_size(text: str) -> int:
    """Return a size such as "64MiB" in bytes, rounded down to whole float32 elements. Raises click.UsageError for
    another format."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2] not in _UNITS or int(found[1]) == 0:
        units = ", ".join(filter(None, _UNITS))
        raise click.UsageError(f'--size is "{text}"; expected a positive number, optionally with a unit ({units})')
    return max(4, int(found[1]) * _UNITS[found[2]] // 4 * 4)


def _bench_line(result: dict[str, Any]) -> str:
    low, middle, high = (1e3 * result[f"{name}_s"] for name in ("quartile1", "median", "quartile3"))
    return (
        f"{counted(result['ranks'], 'rank')}, {result['bytes']} bytes over {result['path']}: {middle:.3f} ms "
        f"(quartiles {low:.3f} … {high:.3f}), bus {result['bus_bytes_per_s'] / 1e9:.2f} GB/s, "
        f"{result['cpu_s_per_gb']:.2f} CPU s/GB"
    )
