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
ENV = {
    "RINGTRAIN_TIMEOUT": "90",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "",
}
SIZES = [1, 2, 3, 4]


def checks_in(*modules: str) -> list[str]:
    """`module.check` for each check, found without importing a module (and a framework with it)."""
    return [f"{module}.{name}" for module in modules for name in _names_in(module)]


def run_checks(modules: tuple[str, ...]) -> dict[str, str]:
    """In a rank: run every check of `modules`; return the traceback of each that failed."""
    failed = {}
    for module in modules:
        loaded = importlib.import_module(f"frameworks.{module}")
        for name in _names_in(module):
            try:
                getattr(loaded, name)()
            except BaseException:
                failed[f"{module}.{name}"] = traceback.format_exc()
    return failed


@functools.cache
def failures(modules: tuple[str, ...], size: int) -> dict[str, str]:
    """What failed in a world of `size` ranks: name of the check to the tracebacks of all ranks."""
    by_rank = run_ranks(run_checks, size, modules, env=ENV, deadline_s=300.0)
    names = {name for failed in by_rank for name in failed}
    return {
        name: "\n".join(f"rank {rank}:\n{failed[name]}" for rank, failed in enumerate(by_rank) if name in failed)
        for name in names
    }


def _names_in(module: str) -> list[str]:
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]
