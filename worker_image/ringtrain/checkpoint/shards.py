"""Format of a checkpoint of several ranks: each rank writes objects, and a manifest completes the checkpoint.

    ckpt-0000000140-019f3c2a1b07/rank-00003-0000.safetensors    arrays of rank 3
    ckpt-0000000140-019f3c2a1b07/rank-00003.json                which elements of which arrays these are
    ckpt-0000000140-019f3c2a1b07/manifest.json                  all lists and the tree of the state; written last

A file is in the safetensors format, which other tools read; a tensor in it is a range of elements of an array.
Checksums cover blocks of a file, so that a part can be read and verified.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.reduction.cuts import ArrayPart
from ringtrain._core.wire.dtypes import dtype_of
from ringtrain.checkpoint.format import DamagedCheckpoint
from ringtrain.errors import ConfigurationError, ObjectMissing, counted
from ringtrain.shared.storage import ObjectStore

VERSION = 1
MANIFEST = "manifest.json"
# A file is in memory as a whole while it is written, and sent in one request: an aborted request leaves nothing in the
# store. 32 MiB was the fastest of 16 to 128 MiB, see bench/README.
FILE_BYTES = 32 << 20
_FILES_AT_ONCE = 4
# Smallest part of a file that is read and verified.
BLOCK_BYTES = 4 << 20
# Number of blocks per request, and of the cache for small arrays.
_BLOCKS_AT_ONCE = 16
# A shorter array that all ranks have is written by rank 0 alone.
_WORTH_CUTTING = 64 << 10

_TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True)
class CheckpointPiece:
    """Elements `start:stop` of the array `name`. Once written, `file` contains them from byte `offset` on."""

    name: str
    start: int
    stop: int
    file: str = ""
    offset: int = 0


def own_part(name: str, array: NDArray[Any] | ArrayPart, rank: int, size: int) -> ArrayPart | None:
    """Return the part of `array` that `rank` of `size` ranks writes; None if it writes nothing. An ArrayPart is the
    rank's own part; an array that all ranks have is divided among them."""
    if array.dtype.name not in _TYPES:
        raise ConfigurationError(
            f"checkpoint: array {name} has dtype {array.dtype.name}; expected one of {', '.join(_TYPES)}"
        )
    if isinstance(array, ArrayPart):
        return array if array.values.size else None
    if array.nbytes < _WORTH_CUTTING:
        return ArrayPart(np.ascontiguousarray(array).reshape(-1), array.shape, 0) if rank == 0 else None
    start, stop = array.size * rank // size, array.size * (rank + 1) // size
    return ArrayPart(np.ascontiguousarray(array).reshape(-1)[start:stop], array.shape, start)


def write_shard(store: ObjectStore, rank: int, parts: Mapping[str, ArrayPart]) -> None:
    """Write the files of `rank`, then a list of their contents. Raises StorageError if the store fails."""

    def write(number: int, group: list[CheckpointPiece]) -> tuple[str, dict[str, Any], list[CheckpointPiece]]:
        file = f"rank-{rank:05d}-{number:04d}.safetensors"
        data, placed = _safetensors_file(file, parts, group)
        store.write(file, data)
        return file, {"bytes": len(data), "sha256": _shard_digests(data)}, placed

    groups = list(_parts_by_file(parts))
    with ThreadPoolExecutor(_FILES_AT_ONCE, "ringtrain-checkpoint-file") as threads:
        done = list(threads.map(write, range(len(groups)), groups))
    files = {file: described for file, described, _ in done}
    pieces = [piece for *_, placed in done for piece in placed]
    document = {"rank": rank, "files": files, "pieces": [list(vars(piece).values()) for piece in pieces]}
    store.write(f"rank-{rank:05d}.json", json.dumps(document).encode())


def write_manifest(store: ObjectStore, step: int, tree: Any, arrays: Mapping[str, Any], size: int) -> None:
    """Merge the lists of all ranks into the manifest. The checkpoint is complete when the manifest is written.

    Raises DamagedCheckpoint if elements of an array are missing.
    """
    files: dict[str, Any] = {}
    pieces: list[list[Any]] = []
    for rank in range(size):
        document = json.loads(store.read(f"rank-{rank:05d}.json"))
        files |= document["files"]
        pieces += document["pieces"]
    _check_whole_arrays(arrays, [CheckpointPiece(*piece) for piece in pieces])
    manifest = {"step": step, "ranks": size, "tree": tree, "arrays": arrays, "files": files, "pieces": pieces}
    text = json.dumps(manifest)
    whole = {"version": VERSION, "sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": text}
    store.write(MANIFEST, json.dumps(whole).encode())


def read_manifest(store: ObjectStore) -> dict[str, Any]:
    """Return the content of the manifest. Raises ObjectMissing, DamagedCheckpoint (invalid content) or StorageError
    (store failed)."""
    data = store.read(MANIFEST)
    try:
        whole = json.loads(data)
        if whole["version"] != VERSION:
            raise ValueError(
                f"its format version is {whole['version']}; this version of ringtrain supports only "
                f"format version {VERSION}"
            )
        if hashlib.sha256(whole["manifest"].encode()).hexdigest() != whole["sha256"]:
            raise ValueError("its content differs from its checksum")
        manifest = json.loads(whole["manifest"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{store.uri}/{MANIFEST} is damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise DamagedCheckpoint(f"{store.uri}/{MANIFEST} is damaged: expected a JSON object")
    return manifest


class StoredCheckpointArray:
    """Array of a checkpoint that is read on demand; `np.asarray` reads all of it."""

    def __init__(
        self, files: "StoredCheckpointFiles", name: str, described: Mapping[str, Any], pieces: list[CheckpointPiece]
    ) -> None:
        self.name = name
        self.shape = tuple(described["shape"])
        self.dtype: np.dtype[Any] = dtype_of(described["dtype"])
        self.size = prod(self.shape)
        self._files = files
        self._pieces = pieces

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return elements `start:stop`, in C order, as a new 1-d array. Reads only the blocks that contain them.

        Raises DamagedCheckpoint if a file is missing or differs from its checksum, ConfigurationError for a range
        outside the array.
        """
        stop = self.size if stop is None else stop
        if not 0 <= start <= stop <= self.size:
            raise ConfigurationError(
                f"checkpoint: elements {start}:{stop} of array {self.name} were requested, but the "
                f"array has elements 0:{self.size}"
            )
        found = np.empty(stop - start, self.dtype)
        width = self.dtype.itemsize
        for piece in self._pieces:
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                begin = piece.offset + (low - piece.start) * width
                target = found[low - start : high - start].view(np.uint8)
                self._files.read_into(piece.file, begin, target)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.read().reshape(self.shape).astype(dtype or self.dtype, copy=False)


class StoredCheckpointFiles:
    """Reader of a checkpoint's files by blocks, with a cache of the last few blocks. Not thread-safe."""

    def __init__(self, store: ObjectStore, manifest: Mapping[str, Any]) -> None:
        self._store = store
        self._files = manifest["files"]
        self._block_cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self.bytes_read = 0

    def read_into(self, file: str, begin: int, target: NDArray[np.uint8]) -> None:
        """Fill `target` with the bytes of `file` from `begin` on. Raises DamagedCheckpoint if bytes are missing or
        wrong."""
        done = 0
        while done < target.size:
            index, inside = divmod(begin + done, BLOCK_BYTES)
            last = (begin + target.size - 1) // BLOCK_BYTES
            block = self._block(file, index, last)
            count = min(len(block) - inside, target.size - done)
            if count <= 0:
                raise DamagedCheckpoint(f"{self._store.uri}/{file} is shorter than the manifest states")
            target[done : done + count] = np.frombuffer(block, np.uint8, count, inside)
            done += count

    def _block(self, file: str, index: int, last: int) -> bytes:
        kept = self._block_cache.get((file, index))
        if kept is not None:
            return kept
        described = self._files[file]
        stop = min(last + 1, index + _BLOCKS_AT_ONCE)
        try:
            data = self._store.read(file, index * BLOCK_BYTES, min(stop * BLOCK_BYTES, described["bytes"]))
        except ObjectMissing as error:
            raise DamagedCheckpoint(str(error)) from error
        self.bytes_read += len(data)
        for number in range(index, stop):
            block = data[(number - index) * BLOCK_BYTES : (number - index + 1) * BLOCK_BYTES]
            if hashlib.sha256(block).hexdigest() != described["sha256"][number]:
                raise DamagedCheckpoint(
                    f"{self._store.uri}/{file} differs from its checksum in bytes {number * BLOCK_BYTES} to "
                    f"{min((number + 1) * BLOCK_BYTES, described['bytes'])}"
                )
            self._block_cache[file, number] = block
        while len(self._block_cache) > _BLOCKS_AT_ONCE:
            self._block_cache.popitem(last=False)
        return data[:BLOCK_BYTES]


def stored_arrays(store: ObjectStore, manifest: Mapping[str, Any]) -> dict[str, StoredCheckpointArray]:
    """Return the arrays of the checkpoint that `manifest` describes, by name."""
    files = StoredCheckpointFiles(store, manifest)
    pieces: dict[str, list[CheckpointPiece]] = {}
    for piece in (CheckpointPiece(*values) for values in manifest["pieces"]):
        pieces.setdefault(piece.name, []).append(piece)
    return {
        name: StoredCheckpointArray(files, name, described, pieces.get(name, []))
        for name, described in manifest["arrays"].items()
    }


def _parts_by_file(parts: Mapping[str, ArrayPart]) -> Iterator[list[CheckpointPiece]]:
    """Yield groups of pieces of `parts`, one group for each file of at most FILE_BYTES."""
    group: list[CheckpointPiece] = []
    room = FILE_BYTES
    for name, part in parts.items():
        start, left, width = part.start, part.values.size, part.dtype.itemsize
        while left:
            if room < width:
                yield group
                group, room = [], FILE_BYTES
            count = min(left, room // width)
            group.append(CheckpointPiece(name, start, start + count))
            start, left, room = start + count, left - count, room - count * width
    if group:
        yield group


def _safetensors_file(
    file: str, parts: Mapping[str, ArrayPart], group: list[CheckpointPiece]
) -> tuple[bytes, list[CheckpointPiece]]:
    """Return the content of a safetensors file with `group`, and the byte position of each piece in it."""
    header: dict[str, Any] = {}
    values: list[NDArray[Any]] = []
    length = 0
    for piece in group:
        part = parts[piece.name]
        run = part.values[piece.start - part.start : piece.stop - part.start]
        key = f"{piece.name}[{piece.start}:{piece.stop}]"
        span = [length, length + run.nbytes]
        header[key] = {"dtype": _TYPES[run.dtype.name], "shape": [run.size], "data_offsets": span}
        length += run.nbytes
        values.append(run)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    offsets = (begin + described["data_offsets"][0] for described in header.values())
    placed = [
        CheckpointPiece(piece.name, piece.start, piece.stop, file, at) for piece, at in zip(group, offsets, strict=True)
    ]
    runs = [np.ascontiguousarray(run).view(np.uint8).data for run in values]
    return b"".join([len(text).to_bytes(8, "little"), text, *runs]), placed


def _shard_digests(data: bytes) -> list[str]:
    view = memoryview(data)
    cuts = range(0, len(data), BLOCK_BYTES)
    return [hashlib.sha256(view[cut : cut + BLOCK_BYTES]).hexdigest() for cut in cuts]


def _check_whole_arrays(arrays: Mapping[str, Any], pieces: list[CheckpointPiece]) -> None:
    reached = dict.fromkeys(arrays, 0)
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.name in reached and piece.start <= reached[piece.name]:
            reached[piece.name] = max(reached[piece.name], piece.stop)
    for name, described in arrays.items():
        if reached[name] < prod(described["shape"]):
            raise DamagedCheckpoint(
                f"array {name} has {counted(prod(described['shape']), 'element')}, but no rank has written "
                f"element {reached[name]}; every rank must pass its part"
            )
