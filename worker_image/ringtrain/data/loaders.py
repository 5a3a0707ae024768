"""Base classes of data loaders under the names of `horovod.data`."""

import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

_END: Final = object()


class BaseDataLoader:
    """Iterable of batches.

    A subclass implements `__len__` and `_iterate`, and may change each batch in `_process_batch`.
    """

    def __len__(self) -> int:
        """Return the number of batches."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no _iterate")

    def _process_batch(self, batch: Any) -> Any:
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Mixin for a `BaseDataLoader`. A thread reads up to `async_loader_queue_size` batches ahead; 0: without a thread.

        class AsyncLoader(AsyncDataLoaderMixin, MyLoader): ...

    An error of the thread is raised where the next batch is read.
    """

    def __init__(self, *args: Any, async_loader_queue_size: int = 64, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.async_loader_queue_size = async_loader_queue_size
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def close_async_loader(self) -> None:
        """End the thread that reads ahead. The next iteration starts another one."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def __iter__(self) -> Iterator[Any]:
        whole: Any = super()
        if self.async_loader_queue_size <= 0:
            yield from whole.__iter__()
            return
        self.close_async_loader()
        self._closing.clear()
        ahead: queue.Queue[Any] = queue.Queue(self.async_loader_queue_size)
        self._thread = threading.Thread(target=self._read, args=(ahead,), name="ringtrain-loader", daemon=True)
        self._thread.start()
        while (given := ahead.get()) is not _END:
            if isinstance(given, _FailedBatch):
                raise given.error
            yield self._process_batch(given)  # type: ignore[attr-defined]

    def _read(self, ahead: "queue.Queue[Any]") -> None:
        last: Any = _END
        try:
            for batch in self._iterate():  # type: ignore[attr-defined]
                if not self._put(ahead, batch):
                    return
        except Exception as error:  # raised where the batch is read
            last = _FailedBatch(error)
        self._put(ahead, last)

    def _put(self, ahead: "queue.Queue[Any]", given: Any) -> bool:
        """Add `given`, a batch or the end of iteration, to the queue `ahead`.

        Return False if the loader was closed before the queue had space.
        """
        while not self._closing.is_set():
            try:
                ahead.put(given, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


class _FailedBatch:
    def __init__(self, error: Exception) -> None:
        self.error = error
