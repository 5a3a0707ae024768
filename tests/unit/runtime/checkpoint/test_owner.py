"""The file by which a process locks a folder of checkpoints."""

import os
import stat
from pathlib import Path

from ringtrain.checkpoint.owner import LOCK, CheckpointFolderOwner


def test_every_user_can_read_who_writes_to_a_folder(tmp_path: Path) -> None:
    """As far as the process's umask allows, and nobody can execute the file."""
    before = os.umask(0)
    try:
        owner = CheckpointFolderOwner()
        owner.take(tmp_path / "run")
    finally:
        os.umask(before)
    lock = tmp_path / "run" / LOCK
    assert lock.read_text().startswith(f"process {os.getpid()} on ")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o644
    owner.give_up()
