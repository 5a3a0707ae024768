"""A nested state as one file: numpy's `.npz` without pickle, plus a manifest in JSON.

`numpy.load` reads the arrays of such a file. `manifest.json` in it holds the tree of the state (`tree`), in which
`{"$array": member}` stands for an array, and of every array the type, shape and SHA-256. Equal states give equal
files.
"""

import errno
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ringtrain._core.wire.dtypes import dtype_of
from ringtrain.checkpoint.tree import join, split
from ringtrain.errors import CheckpointError, ConfigurationError

VERSION = 1
MANIFEST = "manifest.json"


class DamagedCheckpoint(CheckpointError):
    """The file is there and is not what was written."""


def checked_step(step: Any) -> int:
    """`step` as Python's int. Raises ConfigurationError where it is none."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ConfigurationError(
            f"checkpoint: step is {step!r} ({type(step).__name__}); expected a whole number of at least 0"
        )
    return int(step)  # JSON does not have numpy's


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


def read_state(path: Path, step: int | None = None) -> Any:
    """Return the state in the file at `path`, of `step`. Raises DamagedCheckpoint, or OSError when it cannot be
    read."""
    with path.open("rb") as file:
        try:
            return _read(file, step)
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


def _read(file: BinaryIO, step: int | None) -> Any:
    with zipfile.ZipFile(file) as archive:
        _check_sizes(archive, file.seek(0, 2))
        manifest = json.loads(archive.read(MANIFEST))
        if manifest["version"] != VERSION:
            raise ValueError(f"format version {manifest['version']}, this ringtrain reads {VERSION}")
        if step is not None and manifest["step"] != step:
            raise ValueError(f"it is the checkpoint of step {manifest['step']} under the name of step {step}")
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
