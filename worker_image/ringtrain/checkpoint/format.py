"""File format of a checkpoint: numpy's `.npz` without pickle, plus a manifest in JSON.

`numpy.load` reads the arrays of such a file. Its member `manifest.json` contains the tree of the state (`tree`), in
which `{"$array": member}` stands for an array, and the type, shape and SHA-256 of every array. Equal states give equal
files.
"""

import base64
import errno
import hashlib
import json
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ringtrain._core.reduction.cuts import ArrayPart
from ringtrain._core.wire.dtypes import dtype_of, is_made_of_its_name
from ringtrain.checkpoint.codecs import decoder_of, encoder_of
from ringtrain.errors import CheckpointError, ConfigurationError

REFERENCE: Final = "$array"
# Booleans and numbers: dtypes that are fully described by their name.
_KINDS: Final = "biufc"
_CONTAINERS: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_MADE_OF_ITEMS: Final[dict[str, Any]] = {kind: made for made, kind in _CONTAINERS.items()}
# Types that need no codec.
_PLAIN: Final = frozenset({dict, OrderedDict, list, tuple, np.ndarray, ArrayPart})
_EXPECTED: Final = (
    "dicts, lists, tuples, sets, arrays of numbers or booleans, dense tensors, numbers, strings, bytes, booleans "
    "or None; save an object's state_dict()"
)

Arrays = dict[str, NDArray[Any]]


def split(state: Any) -> tuple[Any, Arrays]:
    """Return `state` as a JSON-safe tree, and the arrays that it refers to by name.

    Raises ConfigurationError with the path of a value that cannot be saved.
    """
    arrays: Arrays = {}
    return _split_state(state, arrays, parts=False), arrays


def split_parts(state: Any) -> tuple[Any, dict[str, NDArray[Any] | ArrayPart]]:
    """Return the same as `split`, for a state that may also contain `ArrayPart`s of this rank."""
    arrays: dict[str, Any] = {}
    return _split_state(state, arrays, parts=True), arrays


def _split_state(state: Any, arrays: dict[str, Any], parts: bool) -> Any:
    try:
        return _CheckpointSplitter(arrays, parts).tree(state, ())
    except RecursionError:
        raise ConfigurationError(
            "checkpoint: the state contains itself, or is nested too deeply; save parts of the state"
        ) from None


def join(tree: Any, arrays: Mapping[str, Any], lazy: bool = False) -> Any:
    """Return the state from the tree and arrays that `split` returned.

    `lazy`: whether `arrays` are not read yet. They then replace a framework's tensors in the state, too.
    """
    if isinstance(tree, list):
        return [join(one, arrays, lazy) for one in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "")
    if not kind.startswith("$"):
        return {key: join(one, arrays, lazy) for key, one in tree.items()}
    content = tree[kind]
    if kind == REFERENCE:
        return arrays[content]
    if kind in _MADE_OF_ITEMS:
        return _MADE_OF_ITEMS[kind](join(one, arrays, lazy) for one in content)
    if kind in _JOINED:
        return _JOINED[kind](join(content, arrays, lazy))
    return _decoded(kind, tree, arrays, lazy)


def _decoded(kind: str, tree: Mapping[str, Any], arrays: Mapping[str, Any], lazy: bool) -> Any:
    """Decode a value that a codec has encoded. `kind`: the value's key in `tree`, with `$`.

    If the value refers to an array of `arrays`, return that array instead if `lazy` is True, so that the array is not
    read, or if the codec's framework is not installed.
    """
    content = tree[kind]
    refers = isinstance(content, str) and content in arrays
    if refers and lazy:
        return arrays[content]
    try:
        codec = decoder_of(kind.removeprefix("$"))
    except ModuleNotFoundError:
        if refers:
            return arrays[content]
        raise
    if codec is None:
        raise ConfigurationError(
            f"checkpoint: found a value of kind {kind!r}, which this version of ringtrain does not support"
        )
    return codec.decode(kind.removeprefix("$"), tree, arrays[content] if refers else content)


class _CheckpointSplitter:
    """Converter of a state to a JSON-safe tree. `arrays`: found arrays by name. `parts`: whether `ArrayPart`s are
    allowed."""

    def __init__(self, arrays: dict[str, Any], parts: bool) -> None:
        self._arrays, self._parts = arrays, parts

    def tree(self, value: Any, path: tuple[str, ...]) -> Any:
        if value is None or type(value) in (str, int, float, bool):
            return value
        if type(value) not in _PLAIN:
            codec = encoder_of(value)
            found = None if codec is None else codec.encode(value, lambda array: self._keep(array, path))
            if found is not None:
                return dict(found)
        if isinstance(value, ArrayPart):
            return self._part(value, path)
        if _is_kept_in_checkpoint(value):
            return {REFERENCE: self._keep(value.astype(value.dtype.newbyteorder("="), copy=False), path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple | set | frozenset):
            return self._container(value, path)
        return self._leaf(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        items = {key: self.tree(inner, (*path, str(key))) for key, inner in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            tree: Any = items
        else:
            tree = {"$dict": [[self.tree(key, path), inner] for key, inner in items.items()]}
        if not isinstance(value, OrderedDict):
            return tree
        # A torch module's state_dict has a `_metadata` attribute with versions of its parts, which load_state_dict
        # reads.
        return {"$ordered": [tree, self.tree(getattr(value, "_metadata", None), path)]}

    def _container(self, value: Any, path: tuple[str, ...]) -> Any:
        items = [self.tree(inner, (*path, str(index))) for index, inner in enumerate(value)]
        kind = next((kind for made, kind in _CONTAINERS.items() if isinstance(value, made)), None)
        return items if kind is None else {kind: items}

    def _leaf(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, np.generic) and _has_kept_dtype(value):
            return {"$scalar": {REFERENCE: self._keep(np.asarray(value), path)}}
        if isinstance(value, complex):
            return {"$complex": [value.real, value.imag]}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, str | int | float):  # a subclass, such as an enum: json writes its value
            return value
        raise ConfigurationError(
            f"checkpoint: {'.'.join(path) or 'the state'} is {type(value).__name__} {value!r:.80}; expected {_EXPECTED}"
        )

    def _part(self, value: ArrayPart, path: tuple[str, ...]) -> Any:
        if not self._parts:
            raise ConfigurationError(
                f"checkpoint: {'.'.join(path)} is only this rank's part of an array; store it in a checkpoint at a URI "
                "(ShardedCheckpoints, spec.checkpoint.uri), or call state_dict(root=0) for a directory"
            )
        return {REFERENCE: self._keep(value, path)}

    def _keep(self, array: Any, path: tuple[str, ...]) -> str:
        name = f"{len(self._arrays):05d}-{'.'.join(path)}".replace("/", ":")
        self._arrays[name] = array
        return name


def _is_kept_in_checkpoint(value: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a file can store `value` completely: masked arrays are excluded."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    return _has_kept_dtype(value)


def _has_kept_dtype(value: NDArray[Any] | np.generic) -> bool:
    dtype = value.dtype
    return is_made_of_its_name(dtype) and (dtype.kind in _KINDS or dtype.name == "bfloat16")


def _ordered_checkpoint_state(content: Any) -> Any:
    made = OrderedDict(content[0])
    if content[1] is not None:
        vars(made)["_metadata"] = content[1]
    return made


_JOINED: Final[dict[str, Any]] = {
    "$dict": dict,
    "$ordered": _ordered_checkpoint_state,
    "$scalar": lambda array: array[()],
    "$complex": lambda parts: complex(*parts),
    "$bytes": base64.b64decode,
}


VERSION = 1
MANIFEST = "manifest.json"


class DamagedCheckpoint(CheckpointError):
    """The content of a checkpoint file differs from what was written."""


def checked_checkpoint_step(step: Any) -> int:
    """Return `step` as Python's int. Raises ConfigurationError if it is not a whole number of at least 0."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ConfigurationError(
            f"checkpoint: step is {step!r} ({type(step).__name__}); expected a whole number of at least 0"
        )
    return int(step)  # json does not support numpy's integers


def write_state(file: BinaryIO, step: int, state: Any) -> None:
    """Write `state` to `file`, which must be seekable."""
    tree, arrays = split(state)
    described = describe_checkpoint_arrays(arrays)
    for name, array in arrays.items():
        described[name]["sha256"] = _stored_array_digest(array)
    manifest = {"version": VERSION, "step": step, "tree": tree, "arrays": described}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(manifest))
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, _storable_array(array), allow_pickle=False)


def read_state(path: Path, step: int | None = None) -> Any:
    """Return the state in the file at `path`. Raises DamagedCheckpoint, or OSError if it cannot be read.

    `step`: the expected step; a file of another step counts as damaged.
    """
    with path.open("rb") as file:
        return read_state_of(file, str(path), step)


def read_state_of(file: BinaryIO, name: str, step: int | None = None) -> Any:
    """Return the state in an open file, as `read_state` does. `name`: name of the file, for errors."""
    try:
        return _read_checkpoint(file, step)
    except Exception as error:
        # If the disk refuses to read the end of the archive, zipfile raises BadZipFile.
        cause = error.__context__ if isinstance(error, zipfile.BadZipFile) else error
        if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):  # these come from damage
            raise cause from None
        # For a damaged archive zipfile and numpy raise many types; all mean damage.
        raise DamagedCheckpoint(f"{name} is damaged: {str(error) or type(error).__name__}") from error


def describe_checkpoint_arrays(arrays: Mapping[str, NDArray[Any] | ArrayPart]) -> dict[str, dict[str, Any]]:
    """Return dtype and shape of each whole array, JSON-safe; `empty_checkpoint_array` allocates such an array."""
    return {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()}


def empty_checkpoint_array(described: Mapping[str, Any]) -> NDArray[Any]:
    return np.empty(described["shape"], dtype_of(described["dtype"]))


def _read_checkpoint(file: BinaryIO, step: int | None) -> Any:
    with zipfile.ZipFile(file) as archive:
        _check_archive_sizes(archive, file.seek(0, 2))
        manifest = json.loads(archive.read(MANIFEST))
        if manifest["version"] != VERSION:
            raise ValueError(
                f"its format version is {manifest['version']}; this version of ringtrain supports "
                f"only format version {VERSION}"
            )
        if step is not None and manifest["step"] != step:
            raise ValueError(f"its name is that of step {step}, but it contains step {manifest['step']}")
        arrays = {name: _read_stored_array(archive, name, claimed) for name, claimed in manifest["arrays"].items()}
    return join(manifest["tree"], arrays)


def _check_archive_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Check that no member of the archive is compressed, so that reading needs at most `size` bytes of memory."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed, but ringtrain writes only uncompressed members")
    claimed = sum(member.file_size for member in archive.infolist())
    if claimed > size:
        raise ValueError(f"its zip directory lists {claimed} bytes, but the file has {size} bytes")


def _read_stored_array(archive: zipfile.ZipFile, name: str, claimed: Mapping[str, Any]) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        stored: NDArray[Any] = npy.read_array(member, allow_pickle=False)
    array = stored.view(dtype_of(claimed["dtype"]))
    if list(array.shape) != claimed["shape"] or _stored_array_digest(array) != claimed["sha256"]:
        raise ValueError(f"array {name} differs from its checksum")
    return array


def _stored_array_digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _storable_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array` as a dtype that numpy's format supports: bfloat16 is stored as its 16 bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
