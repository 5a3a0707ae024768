"""Folders that a person renames or deletes while a process uses them."""

import shutil
from pathlib import Path

import pytest

from ringtrain_job.logs.layout import OpenFolder


@pytest.mark.parametrize("name", ["run", "run (deleted)"])
def test_a_folder_is_followed_and_its_end_is_seen(tmp_path: Path, name: str) -> None:
    """The kernel adds " (deleted)" to the path of a deleted folder; a name may end like that, too."""
    (tmp_path / "first").mkdir()
    opened = OpenFolder(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / name)
    assert (opened.path, opened.is_deleted) == (tmp_path / name, False)
    shutil.rmtree(tmp_path / name)
    assert (opened.path, opened.is_deleted) == (tmp_path / name, True)
