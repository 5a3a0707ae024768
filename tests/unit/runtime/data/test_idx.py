"""MNIST's IDX files, whole and damaged."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ringtrain.data import read_idx, read_mnist
from ringtrain.errors import DataError


def _idx(array: np.ndarray, kind: int = 0x08) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _write_mnist(directory: Path, mark: str, packed: bool) -> None:
    images = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    for part in ("train", "t10k"):
        for name, array in (("images", images), ("labels", np.array([7, 8, 9], np.uint8))):
            data = _idx(array)
            path = directory / f"{part}-{name}{mark}idx{array.ndim}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("mark", ["-", "."])
def test_mnist_is_read_from_its_four_files(tmp_path: Path, mark: str, packed: bool) -> None:
    """Both spellings of the names, plain and gzipped."""
    _write_mnist(tmp_path, mark, packed)
    train, test = read_mnist(tmp_path)
    assert train.images.shape == (3, 4, 5)
    assert train.images.dtype == np.uint8
    assert train.images[2, 3, 4] == 59
    assert test.labels.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("kind", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_every_type_comes_in_native_byte_order(tmp_path: Path, kind: int, dtype: str) -> None:
    """Elements are big-endian in the file and native in memory."""
    path = tmp_path / "x"
    path.write_bytes(_idx(np.array([[1, 2], [3, 100]], f">{dtype}"), kind))
    read = read_idx(path)
    assert read.dtype == np.dtype(dtype)
    assert read.tolist() == [[1, 2], [3, 100]]


GOOD = _idx(np.zeros((2, 3), np.uint8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes; expected at least the magic of 4 bytes"),
        (b"\x89PNG1234", "begins with 89 50 4e 47; an IDX file begins with 00 00"),
        (b"\0\0\x07\x01", "begins with 00 00 07 01"),
        (GOOD[:10], "truncated in its header, 10 of 12 bytes"),
        (GOOD[:-1], "truncated: 17 bytes, expected 18 for (2, 3)"),
        (GOOD + b"x", "longer than 18 bytes, the size for (2, 3)"),
        (gzip.compress(GOOD)[:-9], "damaged gzip file"),
        (gzip.compress(GOOD)[:-8] + bytes(8), "damaged gzip file"),
    ],
    ids=[
        "empty",
        "another-format",
        "unknown-type",
        "cut-header",
        "cut-body",
        "too-long",
        "cut-gzip",
        "gzip-checksum",
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    """The error names the file, what it is and what was expected."""
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.slow
def test_a_small_file_that_unpacks_to_much(tmp_path: Path) -> None:
    """Nothing is unpacked beyond what the header says, nor is memory taken for a header that says too much."""
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(GOOD + bytes(256 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="longer than 18 bytes, the size"):
            read_idx(path)
        path.write_bytes(bytes([0, 0, 0x0E, 3]) + b"\xff" * 12 + b"x")
        with pytest.raises(DataError, match="truncated: 17 bytes, expected "):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error lists the names that would do."""
    with pytest.raises(DataError, match=r"has none of train-images-idx3-ubyte, train-images-idx3-ubyte.gz, .*; put"):
        read_mnist(tmp_path)


def test_images_and_labels_must_fit(tmp_path: Path) -> None:
    """As many labels as images, of the right dimensions."""
    _write_mnist(tmp_path, "-", packed=False)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(_idx(np.zeros(2, np.uint8)))
    with pytest.raises(DataError, match=r"has 3 images and .*train-labels-idx1-ubyte has 2 labels"):
        read_mnist(tmp_path)
    labels.write_bytes(_idx(np.zeros((3, 1), np.uint8)))
    with pytest.raises(DataError, match=r"2-d uint8; expected 1-d uint8"):
        read_mnist(tmp_path)


def test_more_dimensions_than_an_array_has(tmp_path: Path) -> None:
    """The error says how many came and how many there may be."""
    path = tmp_path / "many"
    path.write_bytes(bytes([0, 0, 8, 65]) + b"\0\0\0\1" * 65 + b"x")
    with pytest.raises(DataError, match="65 dimensions; expected at most 32"):
        read_idx(path)
