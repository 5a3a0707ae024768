"""Reader of MNIST's IDX files, plain or gzipped.

The format, from the data set's home page (LeCun, Cortes & Burges): two zero bytes, one byte for the type, one byte
for the number of dimensions, each dimension as a big-endian 32-bit integer, then the elements in C order.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ringtrain.errors import DataError, counted

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Supported by every version of numpy.
_MOST_DIMENSIONS = 32
_CHUNK = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Labelled:
    """Images and labels: uint8 arrays of shape (samples, rows, columns) and (samples,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def read_idx(path: str | Path) -> NDArray[Any]:
    """Return the array in the IDX file at `path`, in native byte order.

    Gzip is recognised by its content, and unpacked only up to the length in the header. Raises DataError with the
    file's name for a wrong magic, a truncated or overlong file, or one that cannot be read.
    """
    try:
        with _open_idx(Path(path)) as file:
            return _read_idx_array(file, path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); download it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read_idx_array(file: BinaryIO, path: str | Path) -> NDArray[Any]:
    data = file.read(4)
    if len(data) < 4:
        raise DataError(f"{path}: {len(data)} bytes; expected at least the magic of 4 bytes: download it again")
    kind, dimensions = data[2], data[3]
    if data[:2] != b"\0\0" or kind not in TYPES:
        raise DataError(
            f"{path}: begins with {data[:4].hex(' ')}; an IDX file begins with 00 00, a type "
            f"({', '.join(f'{known:02x}' for known in TYPES)}) and the number of dimensions: is it the right file?"
        )
    if dimensions > _MOST_DIMENSIONS:
        raise DataError(f"{path}: {dimensions} dimensions; expected at most {_MOST_DIMENSIONS}: download it again")
    begin = 4 + 4 * dimensions
    data += file.read(4 * dimensions)
    if len(data) < begin:
        raise DataError(f"{path}: truncated in its header, {len(data)} of {begin} bytes; download it again")
    shape = struct.unpack(f">{dimensions}I", data[4:begin])
    dtype = np.dtype(TYPES[kind])
    expected = begin + prod(shape) * dtype.itemsize
    body, rest = _idx_bytes_at_most(file, expected - begin), file.read(1)
    if rest:
        raise DataError(f"{path}: longer than {expected} bytes, the size for {shape} in its header; download it again")
    if len(body) != expected - begin:
        length = begin + len(body)
        raise DataError(f"{path}: truncated: {length} bytes, expected {expected} for {shape}; download it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def read_mnist(directory: str | Path) -> tuple[Labelled, Labelled]:
    """Return MNIST's training and test set from `directory`.

    Accepts the file names of the first publication, also with a dot before `idx`, with or without `.gz`. Raises
    DataError for a missing or invalid file.
    """
    return _labelled_images(Path(directory), "train"), _labelled_images(Path(directory), "t10k")


def _labelled_images(directory: Path, part: str) -> Labelled:
    image_file, label_file = (
        _find_mnist_file(directory, part, "images", 3),
        _find_mnist_file(directory, part, "labels", 1),
    )
    images, labels = read_idx(image_file), read_idx(label_file)
    for file, array, dimensions in ((image_file, images, 3), (label_file, labels, 1)):
        if array.ndim != dimensions or array.dtype != np.uint8:
            raise DataError(
                f"{file}: {array.ndim}-d {array.dtype}; expected {dimensions}-d uint8: is it the right file?"
            )
    if len(images) != len(labels):
        raise DataError(
            f"{image_file} has {counted(len(images), 'image')} and {label_file} has {counted(len(labels), 'label')}; "
            "use matching files"
        )
    return Labelled(images, labels)


def _find_mnist_file(directory: Path, part: str, what: str, dimensions: int) -> Path:
    stems = [f"{part}-{what}{mark}idx{dimensions}-ubyte" for mark in "-."]
    names = [stem + ending for stem in stems for ending in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"{directory}: has none of {', '.join(names)}; put MNIST's four files into this directory")


def _open_idx(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def _idx_bytes_at_most(file: BinaryIO, length: int) -> bytes:
    """Return the next `length` bytes, or fewer at the end of the file.

    Memory grows with the data read, not with `length`.
    """
    parts = []
    while length and (part := file.read(min(length, _CHUNK))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
