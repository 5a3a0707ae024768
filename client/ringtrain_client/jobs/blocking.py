"""Blocking clients for programs without an event loop. Each method runs the method of the same name in `runs.py`."""

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
    """Event loop in a separate thread, in which blocking clients run coroutines.

    A notebook's own loop is already running, so it cannot be used for waiting.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringtrain-sdk", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self.closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and return its result.

        Ctrl-C cancels `work`. If another thread calls `close`, `work` is cancelled and this method raises RuntimeError.
        """
        with self._lock:
            if self.closed:
                work.close()
                raise RuntimeError("this client is closed; create another")
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("another thread closed this client; create another") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the values of the asynchronous generator `items`. The generator must not yield None, which marks the
        end."""

        async def following() -> T | None:
            return await anext(items, None)

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            if not self.closed:
                self.run(items.aclose())

    def close(self) -> None:
        """Stop the loop's thread and cancel the calls of other threads that still run in the loop."""
        with self._lock:
            self.closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """Cancel all tasks of the loop except this one."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _with_signature_of(method: Callable[..., Any], blocking: Callable[P, T], returns: Any) -> Callable[P, T]:
    """Return `blocking`, which runs `method`, with the name, docstring and arguments of `method`."""
    functools.update_wrapper(blocking, method)
    blocking.__qualname__ = method.__qualname__.removeprefix("Async")
    signature = inspect.signature(method).replace(return_annotation=returns)
    blocking.__signature__ = signature  # type: ignore[attr-defined]
    return blocking


def _blocking_method(
    method: Callable[Concatenate[AsyncRun, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Run, P], T]:
    """Convert an asynchronous method to a method of `Run` that waits for its result."""

    def blocking(self: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._run, *args, **kwargs))

    return _with_signature_of(method, blocking, get_type_hints(method)["return"])


def _blocking_iterator(
    method: Callable[Concatenate[AsyncRun, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Run, P], Iterator[T]]:
    """Convert an asynchronous generator method to a method of `Run` that yields the same values."""

    def blocking(self: Run, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(method(self._run, *args, **kwargs))

    return _with_signature_of(method, blocking, Iterator[get_args(get_type_hints(method)["return"])[0]])  # type: ignore[misc]


def _blocking_lookup(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncRun]],
) -> Callable[Concatenate[Client, P], Run]:
    """Convert an asynchronous method that finds or starts a job to a method of `Client` that returns its `Run`."""

    def blocking(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Run:
        return Run(self._loop.run(method(self._client, *args, **kwargs)), self._loop)

    return _with_signature_of(method, blocking, Run)


class Run:
    """One job. Each method reads the current state from the cluster. A notebook shows the job as a table.

    All methods raise NotFound if the job was deleted, and Forbidden if the user does not have the right.
    """

    def __init__(self, run: AsyncRun, loop: _ClientEventLoop) -> None:
        self._run = run
        self._loop = loop
        self.name, self.namespace = run.name, run.namespace

    def __repr__(self) -> str:
        return repr(self._run)

    def _repr_html_(self) -> str:
        return self.snapshot()._repr_html_()

    job = _blocking_method(AsyncRun.job)
    status = _blocking_method(AsyncRun.status)
    snapshot = _blocking_method(AsyncRun.snapshot)
    metrics = _blocking_method(AsyncRun.metrics)
    why = _blocking_method(AsyncRun.why)
    watch = _blocking_iterator(AsyncRun.watch)
    wait = _blocking_method(AsyncRun.wait)
    scale = _blocking_method(AsyncRun.scale)
    suspend = _blocking_method(AsyncRun.suspend)
    resume = _blocking_method(AsyncRun.resume)
    delete = _blocking_method(AsyncRun.delete)
    logs = _blocking_iterator(AsyncRun.logs)


class Runs(list[Run]):
    """List of jobs, which prints as a table and is shown as a table in a notebook."""

    def __str__(self) -> str:
        return snapshot_text_table([run.snapshot() for run in self])

    def _repr_html_(self) -> str:
        return snapshot_table(run.snapshot() for run in self)


class Client:
    """Client that starts and finds jobs on a cluster, or with LocalBackend() on this machine; a context manager.

    Without a backend, jobs run on the kubeconfig's cluster, or on the cluster in which this program runs as a pod.
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

    train = _blocking_lookup(AsyncClient.train)
    submit = _blocking_lookup(AsyncClient.submit)
    get = _blocking_lookup(AsyncClient.get)
    of = _blocking_lookup(AsyncClient.of)

    def list(self) -> Runs:
        return Runs(Run(run, self._loop) for run in self._loop.run(self._client.list()))

    close.__doc__, list.__doc__ = AsyncClient.close.__doc__, AsyncClient.list.__doc__
