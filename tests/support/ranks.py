"""Run a function in N real processes, one a rank.

    def sum_of_ranks() -> float:
        rt.init()
        return float(rt.allreduce(np.ones(1), op=rt.Sum)[0])

    assert run_ranks(sum_of_ranks, 3) == [3.0, 3.0, 3.0]

The function is a module-level one; it finds its world in the environment, takes picklable arguments and returns a
picklable value. Processes are forked from a server that has imported `support.warm_ranks`, so that a
rank costs milliseconds. Leaving `started_ranks` kills whatever is still alive.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from support.commands import module_at
from support.deadlines import patient
from support.ports import free_addresses

DEADLINE_S = patient(120.0)  # generous: a machine five times slower than an idle one must still pass


@dataclass(frozen=True)
class Outcome:
    """Outcome of one rank: a value, an error (`type: message`, with its traceback), or only an exit code."""

    rank: int
    value: Any = None
    error: str | None = None
    traceback: str = ""
    exit_code: int | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.exit_code == 0


@dataclass
class Ranks:
    """The processes of one world under test."""

    processes: list[BaseProcess]
    pipes: list[Connection]
    messages: list[list[Any]] = field(default_factory=list)
    _results: dict[int, Outcome] = field(default_factory=dict)

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def message(self, rank: int, deadline_s: float = DEADLINE_S) -> Any:
        """The next thing that `rank` said with `tell()`."""
        end = time.monotonic() + deadline_s
        while not self.messages[rank]:
            assert time.monotonic() < end, f"rank {rank} has said nothing for {deadline_s:g} s"
            assert not self.pipes[rank].closed, f"rank {rank} ended before it spoke: {self._results.get(rank)}"
            if self.pipes[rank].poll(0.5):
                self._read(rank)
        return self.messages[rank].pop(0)

    def answer(self, rank: int, word: str = "go on") -> None:
        """Let `rank` go on, which waits in `ask()`."""
        self.pipes[rank].send(word)

    def outcomes(self, deadline_s: float = DEADLINE_S, ranks: list[int] | None = None) -> list[Outcome]:
        """Wait until `ranks` (default: all) have ended. A rank that has not by the deadline fails the test."""
        wanted = list(range(len(self.processes))) if ranks is None else ranks
        end = time.monotonic() + deadline_s
        while missing := [r for r in wanted if self.processes[r].exitcode is None]:
            left = end - time.monotonic()
            assert left > 0, f"ranks {missing} have not ended after {deadline_s:g} s"
            sources = [self.processes[r].sentinel for r in missing] + [p for p in self.pipes if not p.closed]
            for ready in wait(sources, timeout=left):
                if isinstance(ready, Connection):
                    self._read(self.pipes.index(ready))
        for rank in wanted:
            while not self.pipes[rank].closed and self.pipes[rank].poll():
                self._read(rank)
        return [self._outcome(rank) for rank in wanted]

    def _outcome(self, rank: int) -> Outcome:
        told = self._results.get(rank, Outcome(rank))
        return Outcome(rank, told.value, told.error, told.traceback, self.processes[rank].exitcode)

    def _read(self, rank: int) -> None:
        try:
            kind, payload = self.pipes[rank].recv()
        except (EOFError, ConnectionError):
            self.pipes[rank].close()
            return
        if kind == "message":
            self.messages[rank].append(payload)
        else:
            self._results[rank] = payload

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGKILL)
        for process in self.processes:
            process.join(DEADLINE_S)
        for pipe in self.pipes:
            pipe.close()


@contextlib.contextmanager
def started_ranks(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    env: Mapping[str, str] | None = None,
    env_of: Callable[[int], Mapping[str, str]] | None = None,
    context: BaseContext | None = None,
) -> Iterator[Ranks]:
    """Start `function(*args)` in `size` ranks and leave none behind.

    Without `env_of`, each rank gets a ring on free loopback ports (`RINGTRAIN_RANK`, `_SIZE`, `_RING_ADDRESSES`).
    `env` is added to every rank's; `env_of(rank)` replaces the ring's variables. `context`: what forks the
    ranks, if not the server.
    """
    addresses = ",".join(free_addresses(size))

    def ring_env(rank: int) -> dict[str, str]:
        return {
            "RINGTRAIN_RANK": str(rank),
            "RINGTRAIN_SIZE": str(size),
            "RINGTRAIN_RING_ADDRESSES": addresses,
            "RINGTRAIN_TIMEOUT": "60",
        }

    context = context or _forkserver()
    target = (Path(function.__code__.co_filename), function.__qualname__)
    ranks = Ranks([], [], [[] for _ in range(size)])
    try:
        for rank in range(size):
            rank_env = dict((env_of or ring_env)(rank)) | dict(env or {})
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(rank, theirs, rank_env, target, args), daemon=True)
            process.start()
            theirs.close()
            ranks.processes.append(process)
            ranks.pipes.append(ours)
        yield ranks
    finally:
        ranks.kill()


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> list[Any]:
    """Return what `function(*args)` returned on each rank; any error fails the test with its traceback."""
    outcomes = ranks_ended(function, size, *args, deadline_s=deadline_s, **options)
    failed = [o for o in outcomes if not o.ok]
    assert not failed, "\n".join(f"rank {o.rank} (exit {o.exit_code}): {o.error}\n{o.traceback}" for o in failed)
    return [o.value for o in outcomes]


def ranks_ended(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> list[Outcome]:
    """Like `run_ranks`, for ranks that are expected to fail: how each of them ended."""
    with started_ranks(function, size, *args, **options) as ranks:
        return ranks.outcomes(deadline_s)


_pipe: Connection | None = None


def tell(payload: Any) -> None:
    """In a rank: hand `payload` to the test, which reads it with `Ranks.message(rank)`."""
    assert _pipe is not None, "tell() is for functions that run under started_ranks()"
    _pipe.send(("message", payload))


def ask(deadline_s: float = DEADLINE_S) -> Any:
    """In a rank: wait until the test calls `Ranks.answer(rank)`; return its word."""
    assert _pipe is not None, "ask() is for functions that run under started_ranks()"
    assert _pipe.poll(deadline_s), f"the test has not answered for {deadline_s:g} s"
    return _pipe.recv()


@functools.cache
def _forkserver() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    # One BLAS thread: the server must have no threads when it forks, and ranks share few cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "1073741824")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "4294967296")
    context.set_forkserver_preload(["support.warm_ranks"])
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TESTS_PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with mock.patch.dict(os.environ, paths):
        forkserver.ensure_running()
    return context


def _rank_main(
    rank: int, pipe: Connection, env: Mapping[str, str], target: tuple[Path, str], args: tuple[Any, ...]
) -> None:
    global _pipe
    _pipe = pipe
    for name in list(os.environ):
        if name.startswith(("RINGTRAIN_", "OMPI_", "PMIX_", "PMI_")) or name == "TF_CONFIG":
            del os.environ[name]
    os.environ.update(env)
    try:
        outcome = Outcome(rank, value=_load(*target)(*args))
    except BaseException as error:  # the test decides what an error means
        outcome = Outcome(rank, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    with contextlib.suppress(OSError):
        pipe.send(("result", outcome))
    import ringtrain

    if hasattr(ringtrain, "shutdown"):
        ringtrain.shutdown()  # multiprocessing's children skip atexit


def _load(path: Path, qualname: str) -> Callable[..., Any]:
    function: Any = module_at(path)
    for part in qualname.split("."):
        function = getattr(function, part)
    return function  # type: ignore[no-any-return]
