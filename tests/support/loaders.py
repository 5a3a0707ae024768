"""Functions that data workers of the tests import and call."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def squares(indices: Indices) -> dict[str, Any]:
    """Return values of several types that follow from the index."""
    return {
        "square": (indices**2).astype(np.float32),
        "image": np.repeat(indices[:, None] % 251, 5, axis=1).astype(np.uint8),
        "even": indices % 2 == 0,
        "pid": np.int64(os.getpid()),
    }


def slow(indices: Indices) -> dict[str, Any]:
    """Return `squares` with a delay. Record in DIRECTORY, if set, that this data worker has loaded it."""
    time.sleep(0.01)
    if directory := os.environ.get("DIRECTORY"):
        Path(directory, f"loaded-by-{os.environ.get('RINGTRAIN_DATA_INDEX')}").touch()
    return squares(indices)


def large(indices: Indices) -> dict[str, Any]:
    """Return 32 MiB."""
    return {"large": np.full((32 << 20,), indices[0] % 251, np.uint8)}


def raises(indices: Indices) -> dict[str, Any]:
    """Raise an error for the batch with sample 7."""
    if 7 in indices:
        raise LookupError("no picture 7")
    return squares(indices)


def dies_once(indices: Indices) -> dict[str, Any]:
    """Kill this process at the batch with sample 7, if a file can be removed."""
    marker = Path(os.environ["DIES_ONCE"])
    if 7 in indices and marker.exists():
        marker.unlink()
        os.kill(os.getpid(), signal.SIGSEGV)
    return squares(indices)


def dies(indices: Indices) -> dict[str, Any]:
    """Kill this process at the batch with sample 7."""
    if 7 in indices:
        os.kill(os.getpid(), signal.SIGKILL)
    return squares(indices)


def quits(indices: Indices) -> dict[str, Any]:
    os._exit(3)


def is_stopped(indices: Indices) -> dict[str, Any]:
    """Stop this process at the batch with sample 7, if a file can be removed."""
    marker = Path(os.environ["DIES_ONCE"])
    if 7 in indices and marker.exists():
        marker.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
    return squares(indices)


def a_list(indices: Indices) -> Any:
    return [1, 2]


def float8(indices: Indices) -> Any:
    import ml_dtypes

    return {"x": np.zeros(len(indices), ml_dtypes.float8_e5m2)}


def objects(indices: Indices) -> Any:
    return {"text": np.array([object()], dtype=object)}


def masked(indices: Indices) -> Any:
    return {"text": np.ma.array([1, 2], mask=[0, 1])}


def a_text(indices: Indices) -> Any:
    return {"text": "abc"}


def numbered(indices: Indices) -> Any:
    return {0: indices}


not_a_function = 5


def lines(uri: str, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file from a byte on."""
    with Path(uri).open("rb") as file:
        file.seek(offset)
        while line := file.readline():
            yield file.tell(), {"line": np.frombuffer(line.rstrip(), np.uint8)}


def goes_nowhere(uri: str, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    yield offset, {"line": np.zeros(1)}


def no_offset(uri: str, offset: int) -> Iterator[Any]:
    yield {"line": np.zeros(1)}


def none(uri: str, offset: int) -> Iterator[Any]:
    """Yield None, which is not a record, and a valid record."""
    yield None
    yield 1, {"line": np.zeros(1)}


def watched(indices: Indices) -> dict[str, Any]:
    """Return 1 MiB per batch. Record begin and end, with the process of the data worker and its own."""
    directory = Path(os.environ["WATCHED"])
    said = f"{os.getppid()} {os.getpid()}"
    _say(directory / f"loading-{indices[0]}", said)
    time.sleep(0.002 * (indices[0] % 4))
    found = {"index": indices, "bulk": np.full((1 << 20,), indices[0] % 251, np.uint8)}
    _say(directory / f"sending-{indices[0]}", said)
    return found


def _say(path: Path, text: str) -> None:
    new = path.with_name(f"new-{path.name}-{os.getpid()}")
    new.write_text(text)
    new.rename(path)
