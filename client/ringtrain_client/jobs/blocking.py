"""The same clients for programs without an event loop: each method runs its namesake of `runs.py` to its end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args, get_type_hints

from .backends import Backend
from .runs import AsyncClient, AsyncRun
from .views import snapshot_table, snapshot_text_table

P = ParamSpec("P")
T = TypeVar("T")


class _ClientEventLoop:
    """An event loop on a thread of its own: a notebook has one already, in which nothing can be waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringtrain-sdk", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self.closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Ctrl-C cancels it, and so does another thread that closes the client."""
        with self._lock:
            if self.closed:
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
        """What `items` yields, as it comes; None is no item."""

        async def following() -> T | None:
            return await anext(items, None)

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            if not self.closed:
                self.run(items.aclose())

    def close(self) -> None:
        """End the thread, and whatever another thread waits for in it."""
        with self._lock:
            self.closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _like(method: Callable[..., Any], blocking: Callable[P, T], returns: Any) -> Callable[P, T]:
    """`blocking`, which runs `method`, with the other's name, promise and arguments."""
    functools.update_wrapper(blocking, method)
    blocking.__qualname__ = method.__qualname__.removeprefix("Async")
    signature = inspect.signature(method).replace(return_annotation=returns)
    blocking.__signature__ = signature  # type: ignore[attr-defined]
    return blocking


def _waits(
    method: Callable[Concatenate[AsyncRun, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Run, P], T]:
    def blocking(self: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._run, *args, **kwargs))

    return _like(method, blocking, get_type_hints(method)["return"])


def _follows(
    method: Callable[Concatenate[AsyncRun, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Run, P], Iterator[T]]:
    def blocking(self: Run, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(method(self._run, *args, **kwargs))

    return _like(method, blocking, Iterator[get_args(get_type_hints(method)["return"])[0]])  # type: ignore[misc]


def _finds(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncRun]],
) -> Callable[Concatenate[Client, P], Run]:
    def blocking(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Run:
        return Run(self._loop.run(method(self._client, *args, **kwargs)), self._loop)

    return _like(method, blocking, Run)


class Run:
    """One job. Its methods ask the cluster each time; in a notebook it shows as a table.

    All of them raise NotFound when the job is gone, and Forbidden where the user may not ask.
    """

    def __init__(self, run: AsyncRun, loop: _ClientEventLoop) -> None:
        self._run = run
        self._loop = loop
        self.name, self.namespace = run.name, run.namespace

    def __repr__(self) -> str:
        return repr(self._run)

    def _repr_html_(self) -> str:
        return self.snapshot()._repr_html_()

    job = _waits(AsyncRun.job)
    status = _waits(AsyncRun.status)
    snapshot = _waits(AsyncRun.snapshot)
    metrics = _waits(AsyncRun.metrics)
    why = _waits(AsyncRun.why)
    watch = _follows(AsyncRun.watch)
    wait = _waits(AsyncRun.wait)
    scale = _waits(AsyncRun.scale)
    suspend = _waits(AsyncRun.suspend)
    resume = _waits(AsyncRun.resume)
    delete = _waits(AsyncRun.delete)
    logs = _follows(AsyncRun.logs)


class Runs(list[Run]):
    """Jobs; printed, or shown in a notebook, as a table."""

    def __str__(self) -> str:
        return snapshot_text_table([run.snapshot() for run in self])

    def _repr_html_(self) -> str:
        return snapshot_table(run.snapshot() for run in self)


class Client:
    """Starts and finds jobs, on a cluster or, with LocalBackend(), on this machine. A context manager.

    Without a backend: the cluster of the kubeconfig, or of the pod this runs in.
    """

    def __init__(self, backend: Backend | None = None, *, namespace: str = "") -> None:
        self._client = AsyncClient(backend, namespace=namespace)
        self._loop = _ClientEventLoop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.closed:
            return
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.close()

    train = _finds(AsyncClient.train)
    submit = _finds(AsyncClient.submit)
    get = _finds(AsyncClient.get)
    of = _finds(AsyncClient.of)

    def list(self) -> Runs:
        return Runs(Run(run, self._loop) for run in self._loop.run(self._client.list()))

    close.__doc__, list.__doc__ = AsyncClient.close.__doc__, AsyncClient.list.__doc__
