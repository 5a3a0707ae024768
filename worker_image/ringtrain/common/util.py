"""Helper functions, importable as from `horovod.common.util`."""

import contextlib
import functools
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ringtrain import ReduceOp
from ringtrain.common import basics

# Importing TensorFlow takes some seconds, on a busy machine up to minutes.
_GPU_DEADLINE_S = 300.0
_GPU_QUESTIONS = {
    "torch": "import torch; print(torch.cuda.is_available())",
    "tensorflow": "import tensorflow as tf; print(bool(tf.config.list_physical_devices('GPU')))",
}


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless the framework in `ext_name` (such as "ringtrain.torch") is installed.

    The other arguments are accepted for compatibility with Horovod: there is no extension to build.
    """
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: {framework} is not installed; install it with pip")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework `ext_base_name` ("torch" or "tensorflow") is installed. `verbose` has no effect."""
    return importlib.util.find_spec(ext_base_name) is not None


@functools.cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework `ext_base_name` finds a GPU; False if it does not answer within 5 minutes.

    Runs in another process, so that this one does not initialize the framework. `verbose` has no effect.
    """
    if ext_base_name not in _GPU_QUESTIONS or not extension_available(ext_base_name):
        return False
    command = [sys.executable, "-c", _GPU_QUESTIONS[ext_base_name]]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_GPU_DEADLINE_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return False
    return process.stdout.split()[-1:] == ["True"]


def mpi_built(verbose: bool = False) -> bool:
    """Return False, like `ringtrain.torch.mpi_built()`. `verbose` has no effect."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Return False, like `ringtrain.torch.gloo_built()`. `verbose` has no effect."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """Return 0, like `ringtrain.torch.nccl_built()`. `verbose` has no effect."""
    return basics.nccl_built()


def split_list(l: list[Any], n: int) -> list[list[Any]]:  # noqa: E741 (Horovod's name of it)
    """Return `l` cut into `n` lists whose lengths differ by at most one, longer ones first."""
    length, more = divmod(len(l), n)
    cuts = [part * length + min(part, more) for part in range(n + 1)]
    return [l[start:stop] for start, stop in itertools.pairwise(cuts)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether `num_rank` is a power of two, so that Adasum can combine so many ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


check_num_rank_power_of_2 = num_rank_is_power_2


def handle_average_backwards_compatibility(op: Any, average: bool | None) -> Any:
    """Return the reduction for `op`, or for the deprecated `average`. Raises ValueError if both are set."""
    return ReduceOp.of(op, average)


@contextlib.contextmanager
def env(**kwargs: Any) -> Iterator[None]:
    """Set environment variables within the context, and restore the old values afterwards; None removes a variable."""
    before = {name: os.environ.get(name) for name in kwargs}
    try:
        _set(kwargs)
        yield
    finally:
        _set(before)


def _set(variables: dict[str, Any]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)
