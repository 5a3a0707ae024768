"""The same clients for programs without an event loop: each method runs its namesake of `runs.py` to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from ..status.model import JobStatus, Progress
from .backends import Backend
from .runs import AsyncClient, AsyncRun, Code, Options
from .session import Json
from .views import Snapshot, Why, table, text_table

T = TypeVar("T")


class _Loop:
    """An event loop on a thread of its own: a notebook has one already, in which nothing can be waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringtrain-sdk", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._closed = False

    def is_open(self) -> bool:
        """Whether it runs still."""
        return not self._closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Ctrl-C cancels it, and so does another thread that closes the client."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("this client is closed; make another")
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("this client was closed by another thread meanwhile; make another") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """What `items` yields, as it comes."""

        async def following() -> list[T]:
            return [item async for item in _first(items)]

        try:
            while found := self.run(following()):
                yield found[0]
        finally:
            if self.is_open():
                self.run(items.aclose())

    def close(self) -> None:
        """End the thread, and whatever another thread waits for in it."""
        with self._lock:
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _first(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    async for item in items:
        yield item
        return


class Run:
    """One job. Its methods ask the cluster each time; in a notebook it shows as a table.

    All of them raise NotFound when the job is gone, and Forbidden where the user may not ask.
    """

    def __init__(self, run: AsyncRun, loop: _Loop) -> None:
        self._run = run
        self._loop = loop

    @property
    def name(self) -> str:
        """The job's name."""
        return self._run.name

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self._run.namespace

    def __repr__(self) -> str:
        return repr(self._run)

    def _repr_html_(self) -> str:
        return self.snapshot()._repr_html_()

    def job(self) -> Json:
        return self._loop.run(self._run.job())

    def status(self) -> JobStatus:
        return self._loop.run(self._run.status())

    def snapshot(self) -> Snapshot:
        return self._loop.run(self._run.snapshot())

    def metrics(self) -> Progress | None:
        return self._loop.run(self._run.metrics())

    def why(self) -> Why:
        return self._loop.run(self._run.why())

    def watch(self) -> Iterator[Snapshot]:
        return self._loop.iterate(self._run.watch())

    def wait(self, timeout: float | None = None, *, until: str = "", show: bool = False) -> JobStatus:
        return self._loop.run(self._run.wait(timeout, until=until, show=show))

    def scale(self, workers: int) -> None:
        self._loop.run(self._run.scale(workers))

    def suspend(self) -> None:
        self._loop.run(self._run.suspend())

    def resume(self) -> None:
        self._loop.run(self._run.resume())

    def delete(self) -> None:
        self._loop.run(self._run.delete())

    def logs(
        self, rank: int | None = None, *, follow: bool = False, attempt: int | None = None, tail: int | None = None
    ) -> Iterator[str]:
        return self._loop.iterate(self._run.logs(rank, follow=follow, attempt=attempt, tail=tail))


class Runs(list[Run]):
    """Jobs; printed, or shown in a notebook, as a table."""

    def __str__(self) -> str:
        return text_table([run.snapshot() for run in self])

    def _repr_html_(self) -> str:
        return table(run.snapshot() for run in self)


class Client:
    """Starts and finds jobs, on a cluster or, with LocalBackend(), on this machine. A context manager.

    Without a backend: the cluster of the kubeconfig, or of the pod this runs in.
    """

    def __init__(self, backend: Backend | None = None, *, namespace: str = "") -> None:
        self._client = AsyncClient(backend, namespace=namespace)
        self._loop = _Loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._loop.is_open():
            return
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.close()

    def train(self, code: Code, **options: Unpack[Options]) -> Run:
        return Run(self._loop.run(self._client.train(code, **options)), self._loop)

    def submit(self, manifest: Mapping[str, Any] | str | Path) -> Run:
        return Run(self._loop.run(self._client.submit(manifest)), self._loop)

    def get(self, name: str) -> Run:
        return Run(self._loop.run(self._client.get(name)), self._loop)

    def of(self, name: str) -> Run:
        return Run(self._loop.run(self._client.of(name)), self._loop)

    def list(self) -> Runs:
        return Runs(Run(run, self._loop) for run in self._loop.run(self._client.list()))


def _same_promises(blocking: type, asynchronous: type) -> None:
    """Each method promises what its namesake does."""
    for name, method in vars(blocking).items():
        namesake = getattr(asynchronous, name, None)
        if callable(method) and not name.startswith("_") and namesake is not None:
            method.__doc__ = namesake.__doc__


_same_promises(Run, AsyncRun)
_same_promises(Client, AsyncClient)
