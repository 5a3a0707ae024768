"""Run many checks in one world of real ranks, because starting a process with PyTorch or TensorFlow costs seconds.

A module of checks has functions `check_*`, which run on every rank, one after the other, in the order of the file.
Each is reported as a test of its own.
"""

import ast
import functools
import importlib
import traceback
from pathlib import Path

from support.ranks import run_ranks

HERE = Path(__file__).parent


def checks_in(module: str) -> list[str]:
    """Names of the checks in `module`, without importing it (and a framework with it)."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


def run_checks(module: str) -> dict[str, str]:
    """In a rank: run every check of `module`; return the traceback of each that failed."""
    loaded = importlib.import_module(f"frameworks.{module}")
    failed = {}
    for name in checks_in(module):
        try:
            getattr(loaded, name)()
        except BaseException:
            failed[name] = traceback.format_exc()
    return failed


@functools.cache
def failures(module: str, size: int) -> dict[str, str]:
    """What failed in a world of `size` ranks: name of the check to the tracebacks of all ranks."""
    env = {
        "RINGTRAIN_TIMEOUT": "90",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    by_rank = run_ranks(run_checks, size, module, env=env, deadline_s=240.0)
    names = {name for failed in by_rank for name in failed}
    return {
        name: "\n".join(f"rank {rank}:\n{failed[name]}" for rank, failed in enumerate(by_rank) if name in failed)
        for name in names
    }
