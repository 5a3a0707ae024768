"""A nested state as one file: numpy's `.npz` without pickle, plus a manifest in JSON.

`numpy.load` reads the arrays of such a file. `manifest.json` in it holds the tree of the state, in which
`{"$array": member}` stands for an array, and of every array the type, shape and SHA-256. Equal states give equal
files.
"""

import errno
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TypeGuard, runtime_checkable

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ringtrain.errors import CheckpointError, ConfigurationError
from ringtrain.reduction.parts import ArrayPart
from ringtrain.wire.dtypes import dtype_of

VERSION = 1
MANIFEST = "manifest.json"
REFERENCE = "$array"
# Booleans and numbers: types that their name says wholly.
_KINDS = "biufc"

Arrays = dict[str, NDArray[Any]]


@runtime_checkable
class TorchTensor(Protocol):
    """What torch's tensors have, whether torch is here or not: a way to the host, and to numpy from there."""

    dtype: Any

    def detach(self) -> Self: ...
    def cpu(self) -> Self: ...
    def float(self) -> Self: ...
    def numpy(self) -> NDArray[Any]: ...


class DamagedCheckpoint(CheckpointError):
    """The file is there and is not what was written."""


def split(state: Any) -> tuple[Any, Arrays]:
    """Return `state` as a JSON-safe tree, and the arrays that it refers to by name.

    Raises ConfigurationError naming the place of anything but dicts with string keys, lists, arrays of numbers or
    booleans, tensors (kept as arrays), numbers, strings, booleans and None.
    """
    arrays: Arrays = {}
    return _split(state, (), arrays), arrays


def split_parts(state: Any) -> tuple[Any, dict[str, NDArray[Any] | ArrayPart]]:
    """As `split`, of a state in which arrays may also be this rank's `ArrayPart`s."""
    arrays: dict[str, Any] = {}
    return _split(state, (), arrays, parts=True), arrays


def join(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """The state that `split` took apart."""
    if isinstance(tree, dict):
        if tree.keys() == {REFERENCE}:
            return arrays[tree[REFERENCE]]
        return {key: join(value, arrays) for key, value in tree.items()}
    return [join(value, arrays) for value in tree] if isinstance(tree, list) else tree


def write_state(file: BinaryIO, step: int, state: Any) -> None:
    """Write `state` to `file`, which must be seekable."""
    tree, arrays = split(state)
    described = {name: describe(array) | {"sha256": _digest(array)} for name, array in arrays.items()}
    manifest = {"version": VERSION, "step": step, "tree": tree, "arrays": described}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(manifest))
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                npy.write_array(member, _storable(array), allow_pickle=False)


def read_state(path: Path) -> Any:
    """Return the state in the file at `path`. Raises DamagedCheckpoint, or OSError when it cannot be read."""
    with path.open("rb") as file:
        try:
            return _read(file)
        except Exception as error:
            # zipfile takes a disk that refuses the archive's end for another file's end.
            cause = error.__context__ if isinstance(error, zipfile.BadZipFile) else error
            if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):  # those of damage
                raise cause from None
            # A damaged zip archive makes zipfile and numpy raise nearly anything; all of it means the same.
            raise DamagedCheckpoint(f"{path} is damaged: {str(error) or type(error).__name__}") from error


def describe(array: NDArray[Any]) -> dict[str, Any]:
    """Type and shape, JSON-safe; `empty_like` makes such an array again."""
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def empty_like(described: Mapping[str, Any]) -> NDArray[Any]:
    return np.empty(described["shape"], dtype_of(described["dtype"]))


def _split(value: Any, path: tuple[str, ...], arrays: dict[str, Any], parts: bool = False) -> Any:
    if isinstance(value, TorchTensor):
        value = _on_host(value)
    if isinstance(value, ArrayPart):
        if not parts:
            raise ConfigurationError(
                f"checkpoint: {'.'.join(path)} is a rank's part of an array, which only a checkpoint below a URI "
                "holds (ShardedCheckpoints, spec.checkpoint.uri); for a directory call state_dict(root=0)"
            )
        name = _name(arrays, path)
        arrays[name] = value
        return {REFERENCE: name}
    if _is_kept(value):
        name = _name(arrays, path)
        arrays[name] = value.astype(value.dtype.newbyteorder("="), copy=False)
        return {REFERENCE: name}
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != REFERENCE for key in value):
        return {key: _split(inner, (*path, key), arrays, parts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_split(inner, (*path, str(index)), arrays, parts) for index, inner in enumerate(value)]
    plain = value.item() if isinstance(value, np.generic) else value  # of a date or a complex number, no JSON
    if plain is None or isinstance(plain, str | int | float):
        return plain
    raise ConfigurationError(
        f"checkpoint: {'.'.join(path) or 'the state'} is {type(value).__name__} {value!r:.80}; expected dicts "
        f"with string keys, lists, arrays of numbers or booleans, numbers, strings, booleans or None"
    )


def _is_kept(value: object) -> TypeGuard[NDArray[Any]]:
    """Whether it is an array of which a file has everything: it has no place for a mask."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    return value.dtype.kind in _KINDS or value.dtype.name == "bfloat16"


def _name(arrays: Mapping[str, Any], path: tuple[str, ...]) -> str:
    return f"{len(arrays):05d}-{'.'.join(path)}".replace("/", ":")


def _on_host(tensor: TorchTensor) -> NDArray[Any] | TorchTensor:
    """The tensor as an array; the tensor itself where numpy has none for it: of another type, or sparse."""
    host = tensor.detach().cpu()
    try:
        if str(host.dtype) == "torch.bfloat16":  # unknown to numpy(); float32 has all of its values
            return host.float().numpy().astype(dtype_of("bfloat16"))
        return host.numpy()
    except TypeError:
        return tensor


def _read(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        _check_sizes(archive, file.seek(0, 2))
        manifest = json.loads(archive.read(MANIFEST))
        if manifest["version"] != VERSION:
            raise ValueError(f"format version {manifest['version']}, this ringtrain reads {VERSION}")
        arrays = {name: _read_array(archive, name, told) for name, told in manifest["arrays"].items()}
    return join(manifest["tree"], arrays)


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Nothing in a checkpoint is compressed: what is read is never more than the file of `size` bytes."""
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed, which ringtrain never writes")
    told = sum(member.file_size for member in archive.infolist())
    if told > size:
        raise ValueError(f"its members say that they have {told} bytes, the file has {size}")


def _read_array(archive: zipfile.ZipFile, name: str, told: Mapping[str, Any]) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        stored: NDArray[Any] = npy.read_array(member, allow_pickle=False)
    array = stored.view(dtype_of(told["dtype"]))
    if list(array.shape) != told["shape"] or _digest(array) != told["sha256"]:
        raise ValueError(f"array {name} differs from its checksum")
    return array


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """`array` under a type that numpy's format knows: bfloat16 is stored as its 16 bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
