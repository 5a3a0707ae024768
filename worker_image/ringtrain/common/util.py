"""Small helpers that scripts import from `horovod.common.util`, by the same names."""

import contextlib
import functools
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ringtrain import ReduceOp
from ringtrain.common import basics

# Importing TensorFlow takes some seconds, on a busy machine many.
_GPU_DEADLINE_S = 300.0
_GPU_QUESTIONS = {
    "torch": "import torch; print(torch.cuda.is_available())",
    "tensorflow": "import tensorflow as tf; print(bool(tf.config.list_physical_devices('GPU')))",
}


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError unless the framework of `ext_name` ("ringtrain.torch") is installed.

    The other arguments are accepted for Horovod's sake: there is no extension to build for a framework.
    """
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: {framework} is not installed; expected it beside ringtrain (pip install)")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework `ext_base_name` ("torch", "tensorflow") is installed."""
    return importlib.util.find_spec(ext_base_name) is not None


@functools.cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework `ext_base_name` sees a GPU. Asked in another process, so that nothing is begun in this
    one; False where it has not answered within some minutes.
    """
    if ext_base_name not in _GPU_QUESTIONS or not extension_available(ext_base_name):
        return False
    command = [sys.executable, "-c", _GPU_QUESTIONS[ext_base_name]]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_GPU_DEADLINE_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.stdout.split()[-1:] == ["True"]


def mpi_built(verbose: bool = False) -> bool:
    """As `ringtrain.torch.mpi_built`."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """As `ringtrain.torch.gloo_built`."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """As `ringtrain.torch.nccl_built`."""
    return basics.nccl_built()


def split_list(l: list[Any], n: int) -> list[list[Any]]:  # noqa: E741 (Horovod's name of it)
    """Cut `l` into `n` parts whose lengths differ by at most one, the longer ones first."""
    length, more = divmod(len(l), n)
    cuts = [part * length + min(part, more) for part in range(n + 1)]
    return [l[start:stop] for start, stop in itertools.pairwise(cuts)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether Adasum can combine so many ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


check_num_rank_power_of_2 = num_rank_is_power_2


def handle_average_backwards_compatibility(op: Any, average: bool | None) -> Any:
    """Return the reduction that `op`, or the deprecated `average`, asks for. Raises ValueError for both."""
    return ReduceOp.of(op, average)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return `handle_average_backwards_compatibility`. `reduce_ops`: accepted for Horovod's sake."""
    return handle_average_backwards_compatibility


def is_iterable(x: Any) -> bool:
    """Whether `iter(x)` works."""
    return isinstance(x, Iterable) or hasattr(x, "__getitem__")


@contextlib.contextmanager
def env(**kwargs: Any) -> Iterator[None]:
    """Within it the environment has these variables; None takes one away. Afterwards it is as before."""
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
