"""A checkpoint file that says more than it holds is refused before memory is taken for it."""

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from ringtrain.checkpoint.format import DamagedCheckpoint, read_state

MANIFEST = json.dumps({"version": 1, "step": 1, "tree": " " * (64 << 20), "arrays": {}})


def test_a_manifest_that_inflates(tmp_path: Path) -> None:
    """64 MiB in 64 KiB."""
    path = tmp_path / "ckpt-0000000001.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", MANIFEST)
    _is_refused(path, "manifest.json is compressed")


def test_members_that_share_their_bytes(tmp_path: Path) -> None:
    """The same bytes told to be in many members count once for each."""
    path = tmp_path / "ckpt-0000000001.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", b" " * 100_000)
        for number in range(50):
            twin = zipfile.ZipInfo(f"{number}.npy")
            twin.file_size = twin.compress_size = 100_000
            twin.header_offset, twin.CRC = 0, 0
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
    _is_refused(path, "its zip directory lists")


def _is_refused(path: Path, why: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DamagedCheckpoint, match=why):
            read_state(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
