"""Loader process, a data worker's child that calls user functions: `python -m ringtrain_data_service.loader FD`.

It imports the user's function, calls it, and returns the arrays in shared memory. It ends with the data worker. Its
output is in the data worker's log.
"""

import importlib
import os
import socket
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final

import numpy as np

from ringtrain.adapter import is_made_of_its_name
from ringtrain.errors import kind_of
from ringtrain.shared.framing import receive_frame, send_frame
from ringtrain_data_service.frames import Arrays, DataWorkerAnswer, DataWorkerRequest, array_heads, array_places

# Limit on splits that a loader process leaves open between two requests.
_OPEN_SPLITS: Final = 64
_MOST_TRACEBACK: Final = 16_000
# Marks the end of a split; not None, which an invalid reader may yield.
_END: Final = object()


class _BadLoaderResult(Exception):
    """Error: the user's function cannot be called, or its result cannot be sent."""


class DataWorkerLoader:
    """Caller of the user's functions. Its method `answer` never raises; errors become `failed` answers."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._splits: OrderedDict[tuple[str, str], tuple[int, Iterator[Any]]] = OrderedDict()

    def answer(self, request: DataWorkerRequest) -> DataWorkerAnswer:
        """Run the user's function for `request`; return a `loaded`, `ended` or `failed` answer."""
        try:
            function = self._function(request.function)
            if request.uri:
                return self._next_of_split(function, request)
            arrays = _checked_batch(function(request.indices), f'"{request.function}" returned')
            return DataWorkerAnswer("loaded", request.key, heads=array_heads(arrays), arrays=arrays)
        except _BadLoaderResult as error:
            return DataWorkerAnswer("failed", request.key, str(error))
        except BaseException as error:
            self._splits.pop((request.function, request.uri), None)
            return DataWorkerAnswer("failed", request.key, _loader_error_text(request.function, error))

    def _function(self, name: str) -> Callable[..., Any]:
        if name in self._functions:
            return self._functions[name]
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.split(".")[0] and error.name != module_name:
                raise
            raise _BadLoaderResult(
                f'"{name}": the data worker cannot find the module {module_name} in {os.getcwd()} or '
                "in PYTHONPATH; give data workers the same code as ranks"
            ) from error
        found: Any = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise _BadLoaderResult(f'"{name}": module {module_name} ({module.__file__}) has no {attribute}')
            found = getattr(found, part)
        if not callable(found):
            raise _BadLoaderResult(f'"{name}" is {kind_of(found)}; expected a function')
        self._functions[name] = found
        return self._functions[name]

    def _next_of_split(self, function: Callable[..., Any], request: DataWorkerRequest) -> DataWorkerAnswer:
        name = (request.function, request.uri)
        at, items = self._splits.pop(name, (None, None))
        if at != request.offset or items is None:
            items = iter(function(request.uri, request.offset))
        item = next(items, _END)
        if item is _END:
            return DataWorkerAnswer("ended", request.key)
        offset, arrays = _checked_batch_item(item, request)
        self._splits[name] = offset, items
        while len(self._splits) > _OPEN_SPLITS:
            self._splits.popitem(last=False)
        return DataWorkerAnswer("loaded", request.key, offset=offset, heads=array_heads(arrays), arrays=arrays)


def _checked_batch(result: object, who: str) -> Arrays:
    """Return `result` as arrays. Raises _BadLoaderResult, with a message that starts with `who`, for other types."""
    if not isinstance(result, Mapping):
        raise _BadLoaderResult(f"{who} {kind_of(result)}; expected a dict of arrays by name")
    return {
        _batch_array_name(name, who): _loaded_batch_array(value, f"{who} a dict whose {name!r}")
        for name, value in result.items()
    }


def _batch_array_name(name: object, who: str) -> str:
    if not isinstance(name, str):
        raise _BadLoaderResult(f"{who} a dict with the key {name!r}; expected strings as keys")
    return name


def _loaded_batch_array(value: object, where: str) -> Any:
    if not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
        raise _BadLoaderResult(f"{where} is {kind_of(value)}; expected a numpy array (numpy.asarray makes one)")
    if isinstance(value, np.ma.MaskedArray):
        raise _BadLoaderResult(f"{where} is a masked array, but masks are not sent; call its method filled()")
    array = np.asarray(value)
    if not is_made_of_its_name(array.dtype):
        raise _BadLoaderResult(
            f"{where} is an array of dtype {array.dtype}; expected numbers, bool or fixed-length "
            "text: arrays of objects are not sent, because that needs pickle"
        )
    return np.asarray(array, order="C")


def _checked_batch_item(item: object, request: DataWorkerRequest) -> tuple[int, Arrays]:
    who = f'"{request.function}" yielded'
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], int | np.integer)):
        raise _BadLoaderResult(
            f"{who} {kind_of(item)}; expected a tuple (offset of the next read, dict of arrays by name)"
        )
    offset = int(item[0])
    if offset <= request.offset:
        raise _BadLoaderResult(
            f"{who} the offset {offset} after offset {request.offset} in {request.uri}; expected a larger offset"
        )
    return offset, _checked_batch(item[1], f"{who} with offset {offset}")


def _loader_error_text(name: str, error: BaseException) -> str:
    """Return `error` with its traceback as text, without the frames of this module. `name`: the user's function."""
    below: TracebackType | None = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    lines = "".join(traceback.format_exception(type(error), error, below))
    shown = lines if len(lines) <= _MOST_TRACEBACK else "…" + lines[-_MOST_TRACEBACK:]
    return f'"{name}" raised {type(error).__name__}\n{shown.rstrip()}'


def send_loaded_answer(sock: socket.socket, answer: DataWorkerAnswer) -> None:
    """Send `answer` over `sock`, with its arrays in a memory file whose descriptor is sent along."""
    begins, total = array_places(answer.heads)
    memory = os.memfd_create("ringtrain-batch", os.MFD_CLOEXEC)
    try:
        os.truncate(memory, total)
        for array, begin in zip(answer.arrays.values(), begins, strict=True):
            _write_arrays(memory, array.reshape(-1).view(np.uint8).data, begin)
        send_frame(sock, answer.encode_head(), [memory])
    finally:
        os.close(memory)


def _write_arrays(memory: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(memory, data, at)
        data, at = data[written:], at + written


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as own:
        loader = DataWorkerLoader()
        while (frame := receive_frame(own)) is not None:
            send_loaded_answer(own, loader.answer(DataWorkerRequest.decode(frame[0])))
