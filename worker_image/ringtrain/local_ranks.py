"""Run a function in rank processes on this machine, and return the result of each rank."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringtrain import horovod_run
from ringtrain.errors import ConfigurationError, PeerLost, RankFailed
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, loopback_address

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_MAX_RANKS: Final = 1024
# Time for a rank to end after it has sent its result, and for the other ranks to send their errors after the first one.
_GRACE_S: Final = 10.0


@dataclass(frozen=True)
class _LocalRank:
    """Process of one local rank, and the pipe through which it returns its result."""

    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class _LocalRankFailure:
    """Error of a failed rank. `follows`: whether the rank failed only because another rank was lost."""

    error: RankFailed
    follows: bool


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: Any = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: Any = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    network_interfaces: Any = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Run `func(*args, **kwargs)` in `num_proc` rank processes on this machine. Return the results by rank.

        def train(lr): hvd.init(); ...; return loss
        losses = ringtrain.run(train, args=(0.1,), np=4)

    `np`: Horovod's older name of `num_proc`. `hosts`, `hostfile`: only names of this machine, with at least `num_proc`
    slots. `start_timeout`: seconds that a rank waits for the others.
    `output_filename`: a directory in which rank.N/stdout and rank.N/stderr receive the output of rank N. `verbose`: 2
    or more shows ringtrain's own messages. `executable`: the Python interpreter of the ranks. Horovod's other arguments
    have no effect here; each logs a warning with the reason.

    `env`: variables added to this process's environment in the ranks. `timeout_s`: seconds after which ranks are
    killed, or None for no limit. Function, arguments and results are pickled, with cloudpickle if it is installed,
    which accepts lambdas and functions of a notebook. As with `multiprocessing`, a script must guard its start with `if
    __name__ == "__main__":`.

    Processes that the ranks have started end with the ranks, also if this process is killed.

    Raises RankFailed for the rank that failed first, with its traceback, after all other ranks have ended. Raises
    ConfigurationError for invalid arguments.
    """
    import multiprocessing

    from ringtrain.shared.processes import run_folder

    horovod_run.warn_ignored_arguments(
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        disable_cache=disable_cache,
        use_gloo=use_gloo,
        use_mpi=use_mpi,
        mpi_args=mpi_args,
        network_interface=network_interface,
        min_np=min_np,
        max_np=max_np,
        network_interfaces=network_interfaces,
    )
    size = horovod_run.checked_rank_count(num_proc if np is None else np, hosts, hostfile)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MAX_RANKS:
        raise ConfigurationError(f"run: np is {size!r}; expected a number of ranks from 1 to {_MAX_RANKS}")
    env = {**horovod_run.variables(start_timeout, verbose), **(env or {})}
    outputs = horovod_run.output_directories(output_filename, size)
    _check_ranks_find_function(func)
    work = _pickled_for_local_ranks((func, tuple(args), dict(kwargs or {})), "run: the function or its arguments")
    context = multiprocessing.get_context("spawn")
    if executable is not None:
        context.set_executable(executable)
    ranks: list[_LocalRank] = []
    with run_folder() as directory:
        try:
            for own, output in zip(_local_rank_environments(size, directory, env), outputs, strict=True):
                ours, theirs = context.Pipe(duplex=False)
                arguments = (os.getpid(), theirs, own, work, output)
                process = context.Process(target=_local_rank_main, args=arguments, daemon=False)
                process.start()
                theirs.close()
                ranks.append(_LocalRank(process, ours))
            results = _local_rank_results(ranks, timeout_s)
            for entry in ranks:
                entry.process.join(_GRACE_S)
            return results
        finally:
            _end_local_ranks(ranks)
            if executable is not None:
                context.set_executable(sys.executable)


def _local_rank_environments(size: int, directory: Path, env: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the environment variables of each rank, such as its loopback address and the token of this run."""
    import secrets

    from ringtrain.shared.place import RankPlace
    from ringtrain.shared.ports import HeldPorts

    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    held = HeldPorts()
    addresses = ",".join(host_port(loopback_address(), port) for port in held.take(0, size))
    held.release()
    return [
        {
            **env,
            contract.ENV_RUN_FOLDER: str(directory),
            **RankPlace(rank, size, rank, size, 0, 1).variables(),
            "HOROVOD_HOSTNAME": loopback_address(),
            contract.ENV_RING_ADDRESSES: addresses,
            contract.ENV_TOKEN_FILE: str(token),
        }
        for rank in range(size)
    ]


def _local_rank_main(parent: int, pipe: Connection, env: Mapping[str, str], work: bytes, output: Path | None) -> None:
    """Entry point of a rank process: run the work and send its result or error through `pipe`.

    `parent`: PID of the process that started the rank. `work`: pickled function and arguments. `output`: folder for the
    rank's stdout and stderr, or None.
    """
    from ringtrain.shared.processes import die_with_parent

    die_with_parent(parent)()
    if output is not None:
        horovod_run.redirect_output(output)
    for name in (contract.ENV_REPORT_FD, contract.ENV_MPI_CHECK_IN):  # set for the process that called run()
        os.environ.pop(name, None)
    os.environ.update(env)
    try:
        func, args, kwargs = pickle.loads(work)
        pipe.send((True, _pickled_for_local_ranks(func(*args, **kwargs), "run: the result")))
    except BaseException as error:
        follows = isinstance(error, PeerLost)
        pipe.send((False, (f"{type(error).__name__}: {error}", traceback.format_exc(), follows)))
        raise SystemExit(1) from None


def _local_rank_results(ranks: Sequence[_LocalRank], timeout_s: float | None) -> list[Any]:
    from multiprocessing.connection import wait

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    results: dict[int, Any] = {}
    failure: _LocalRankFailure | None = None
    while len(results) < len(ranks):
        waiting = {entry.pipe: rank for rank, entry in enumerate(ranks) if rank not in results}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(waiting), left)
        if not ready and failure is None:
            raise RankFailed(None, f"run: ranks {list(waiting.values())} did not end within {timeout_s:g} s")
        if not ready:
            break
        for pipe, rank in waiting.items():
            if pipe in ready:
                results[rank] = result = _received_from_local_rank(rank, ranks[rank])
                if isinstance(result, _LocalRankFailure) and (
                    failure is None or (failure.follows and not result.follows)
                ):
                    failure = result
        if failure is not None:
            if not failure.follows:
                break
            deadline = min(deadline or float("inf"), time.monotonic() + _GRACE_S)
    if failure is not None:
        raise failure.error
    return [results[rank] for rank in range(len(ranks))]


def _received_from_local_rank(rank: int, entry: _LocalRank) -> Any:
    try:
        succeeded, content = entry.pipe.recv()
    except (EOFError, ConnectionError):
        entry.process.join(_GRACE_S)
        code = entry.process.exitcode
        text = (
            f"run: rank {rank} ended with exit code {code} and sent no result; see its output. A "
            'script that calls run() does so under `if __name__ == "__main__":`'
        )
        return _LocalRankFailure(RankFailed(rank, text), follows=False)
    if succeeded:
        return pickle.loads(content)
    reason, text, follows = content
    return _LocalRankFailure(RankFailed(rank, f"run: rank {rank} failed with {reason}\n\n{text}"), follows)


def _end_local_ranks(ranks: Sequence[_LocalRank]) -> None:
    """Kill the processes that still run, and wait until all have ended."""
    for entry in ranks:
        if entry.process.is_alive():
            entry.process.kill()
    for entry in ranks:
        entry.process.join(_GRACE_S)
        entry.pipe.close()


def _check_ranks_find_function(func: Callable[..., Any]) -> None:
    """Raise ConfigurationError if ranks cannot import `func` (as in a notebook) and cloudpickle is not installed."""
    interactive = func.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if interactive and find_spec("cloudpickle") is None:
        name = getattr(func, "__qualname__", repr(func))
        raise ConfigurationError(
            f"run: {name} is defined in a notebook or an interactive session, where ranks cannot import it; "
            "install cloudpickle, or move the function into a module"
        )


def _pickled_for_local_ranks(value: Any, what: str) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        pickler: Any = pickle
    else:
        pickler = cloudpickle
    try:
        data: bytes = pickler.dumps(value)
    except Exception as error:
        raise ConfigurationError(
            f"{what} can't be pickled ({type(error).__name__}: {error}); define it at the top level of a module, "
            "or install cloudpickle"
        ) from error
    return data
