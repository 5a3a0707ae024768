"""Checkpoints of a job in a directory: rank 0 writes them, and every rank resumes from the same one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from ringtrain._core.process_groups.formations import CARRIED
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.checkpoint.format import (
    DamagedCheckpoint,
    checked_checkpoint_step,
    describe_checkpoint_arrays,
    empty_checkpoint_array,
    join,
    read_state,
    split,
    write_state,
)
from ringtrain.checkpoint.locations import CheckpointLocation, JobCheckpoints, checkpoint_location_of
from ringtrain.checkpoint.owner import LOCK, CheckpointFolderOwner
from ringtrain.errors import CheckpointError, ConfigurationError
from ringtrain.report import report_start
from ringtrain.shared.storage import is_uri

Stage = Literal["written", "synced", "renamed"]
OnStage = Callable[[Stage], None]

NAME = re.compile(r"ckpt-(\d{10,})\.npz")
ASIDE = re.compile(r"ckpt-(\d{10,})\.npz\.damaged")


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step:010d}.npz"


def checkpoints_by_step(directory: Path, pattern: re.Pattern[str] = NAME) -> dict[int, Path]:
    """Return the finished checkpoints in `directory`, or the files that match `pattern`, newest first.

    Raises OSError.
    """
    if not directory.is_dir():
        return {}
    found = {int(match[1]): path for path in directory.iterdir() if (match := pattern.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def write_atomically(path: Path, write: Callable[[BinaryIO], None], on_stage: OnStage) -> None:
    """Write `path` by `write` so that a reader finds the old file or the whole new one, also after a power cut.

    `on_stage` is called after each stage, for tests that stop there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            on_stage("written")
            file.flush()
            os.fsync(file.fileno())
        on_stage("synced")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    on_stage("renamed")


def rename_damaged_checkpoint(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither read nor counted but can be inspected.

    Return the new path.
    """
    return path.rename(path.with_name(f"{path.name}.damaged"))


def remove_old(folders: Sequence[Path], keep: int, newest: Path) -> None:
    """Remove all but `newest` and the `keep` latest checkpoints, older damaged ones, and incomplete files.

    `folders`: the folder of `newest`, then the folders of earlier attempts, newest first. Checkpoints of an attempt are
    later than those of all earlier attempts. Removes folders that become empty.
    """
    for folder in folders:
        found = checkpoints_by_step(folder)
        kept = dict(list(found.items())[:keep])
        keep -= len(kept)
        stale = [path for step, path in found.items() if step not in kept and path != newest]
        stale += [path for step, path in checkpoints_by_step(folder, ASIDE).items() if not kept or step < min(kept)]
        stale += list(folder.glob("ckpt-*.npz*.tmp"))
        for path in stale:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # harmless if a removed file comes back
            sync_directory(folder)
        if folder == newest.parent:
            continue
        with contextlib.suppress(OSError):  # harmless if the folder remains
            if {path.name for path in folder.iterdir()} <= {LOCK}:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def sync_directory(directory: Path) -> None:
    """Flush `directory` so that renames in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger("ringtrain.checkpoint")


@dataclass(frozen=True)
class Saved:
    """Checkpoint that was read: the `step` and `state` that were passed to `save`. Tensors are in host memory."""

    step: int
    state: Any
    path: Path | str


class EarlierStepNotice:
    """Warning, logged once, that the saved step is earlier than the latest checkpoint, which `latest()` returns."""

    def __init__(self) -> None:
        self._has_warned = False

    def tell(self, step: int, latest: int, place: object) -> None:
        """Log the warning for a save of `step` into `place`, whose latest checkpoint is of step `latest`."""
        if self._has_warned or step >= latest:
            return
        self._has_warned = True
        log.warning(
            "step %d is saved into %s, which already has step %d: latest() returns the higher step, and lower steps "
            "are removed first. Use another folder for a new training, or remove the old checkpoints",
            step,
            place,
            latest,
        )


class Checkpoints:
    """Checkpoints in one directory; the latest `keep` are retained.

        checkpoints = Checkpoints(directory)
        if saved := checkpoints.latest(): opt.load_state_dict(saved.state["optimizer"])
        checkpoints.save(step, {"optimizer": opt.state_dict(root=0)})

    Only rank 0 accesses the directory, which may exist on one node only. It broadcasts the checkpoint that it read, so
    that all ranks resume from the same file.

    In the job's own directory (`job_directory()`, or a folder in it) each attempt of the job writes into its own
    folder, and `latest` reads the newest attempt's. For `keep`, checkpoints of earlier attempts are older.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        group: CollectiveGroup | None = None,
        on_stage: OnStage = lambda stage: None,
    ) -> None:
        """Set the directory of the checkpoints, without accessing it.

        `on_stage`: rank 0 calls it when a file has been written, synced and renamed; for fault injection.
        """
        if keep < 1:
            raise ConfigurationError(f"keep is {keep}; expected at least 1 checkpoint to keep")
        if is_uri(directory):
            raise ConfigurationError(f"{directory} is a URI; Checkpoints expects a directory: use ShardedCheckpoints")
        self.directory = Path(directory)
        self._keep = keep
        self._group = group or group_of()
        self._on_stage = on_stage
        self._job = JobCheckpoints.from_env(os.environ)
        self._owner = CheckpointFolderOwner()
        self._earlier = EarlierStepNotice()
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, step: int, state: Mapping[str, Any], *, background: bool = False) -> None:
        """Write `state` as the checkpoint of `step`, atomically, and remove the oldest checkpoints.

        Only rank 0 writes; on other ranks the call ignores its arguments and returns at once. `state` consists of
        dicts, lists, tuples, sets, arrays and tensors of numbers or booleans, numbers, strings, bytes, booleans and
        None, as returned by `state_dict()` of models, optimizers, schedulers and scalers.
        `background`: whether to write on a thread and return at once. If True, do not change `state` until the next
        save() or finish(), which raises the error of the write. (A `state_dict` does not change.) If False, the other
        ranks have to wait for a slow disk, for RINGTRAIN_TIMEOUT at most.
        Raises CheckpointError if the checkpoint cannot be written, or if another process writes into the same folder;
        earlier checkpoints are retained. Raises ConfigurationError for a step that is not a whole number of at least 0.
        """
        self.finish()
        if self._group.rank != 0:
            return
        step = checked_checkpoint_step(step)
        location = checkpoint_location_of(self.directory, self._job)
        if not background:
            self._write(location, step, state)
            return
        # Not a daemon, so that the interpreter waits for it before it exits.
        self._writer = threading.Thread(
            target=self._write_in_background, args=(location, step, state), name="ringtrain-checkpoint"
        )
        self._writer.start()

    def finish(self) -> None:
        """Wait for a background save to end, and raise its error."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write_in_background(self, location: CheckpointLocation, step: int, state: Mapping[str, Any]) -> None:
        try:
            self._write(location, step, state)
        except Exception as error:
            log.error("%s", error)  # logged here too, because training may end before the next call
            self._failure = error

    def _write(self, location: CheckpointLocation, step: int, state: Mapping[str, Any]) -> None:
        path = checkpoint_path(location.own, step)
        try:
            self._owner.take(location.own)
            self._earlier.tell(step, max(checkpoints_by_step(location.own), default=0), location.own)
            write_atomically(path, lambda file: write_state(file, step, state), self._on_stage)
            remove_old((location.own, *location.earlier), self._keep, path)
        except CheckpointError:  # an OSError, too
            raise
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be written: {error.strerror or error}; check the free space and permissions "
                f"of {self.directory}"
            ) from error

    def latest(self) -> Saved | None:
        """Return the newest undamaged checkpoint, or None. Collective.

        If the job has no checkpoint, reads the newest of the job that `spec.checkpoint.restoreFrom` names, without
        changes to that job's files. Reports the checkpoint to the launcher, for its log and the job's status.
        A damaged checkpoint is logged and renamed to `….damaged`, and the previous checkpoint is read. Raises
        CheckpointError on every rank if all are damaged (a silent restart from scratch would be worse), if the
        directory cannot be read, and if the named job has no checkpoints.
        """
        self.finish()
        found: Saved | None = None
        announced: dict[str, Any] = {}
        if self._group.rank == 0:
            try:
                found = self._read_latest()
                if found is not None:
                    tree, arrays = split(found.state)
                    described = describe_checkpoint_arrays(arrays)
                    announced = {"step": found.step, "path": str(found.path), "tree": tree, "arrays": described}
                report_start(found.step if found else 0, str(found.path) if found else "")
                CARRIED.restored = str(found.path) if found else ""
            except CheckpointError as error:
                announced = {"error": str(error)}
        announced = self._group.broadcast_object(announced, "checkpoint found")
        if "error" in announced:
            raise CheckpointError(announced["error"])
        if "step" not in announced:
            return None
        return self._receive(announced, found)

    def _read_latest(self) -> Saved | None:
        for path in (self.directory, *self.directory.parents):
            if path.is_file():
                raise CheckpointError(f"{self.directory} is not a directory: {path} is a file; choose another path")
        location = checkpoint_location_of(self.directory, self._job)
        found = self._newest_in((location.own, *location.earlier), own=True)
        if found is None and location.restore_from:
            found = self._newest_in(location.sources(), own=False)
            if found is None:
                raise CheckpointError(
                    f"checkpoint.restoreFrom is {location.restore_from!r}, which has no checkpoint in "
                    f"{location.below}; remove restoreFrom to start without one"
                )
        return found

    def _newest_in(self, folders: Sequence[Path], own: bool) -> Saved | None:
        """Return the newest undamaged checkpoint of the first folder that has one, or None.

        `own`: whether the folders belong to this job, so that damaged checkpoints are renamed.
        """
        damaged: dict[Path, str] = {}
        try:
            for step, path in (item for folder in folders for item in checkpoints_by_step(folder).items()):
                try:
                    saved = Saved(step, read_state(path, step), path)
                except DamagedCheckpoint as error:
                    log.warning("%s; trying the previous checkpoint", error)
                    damaged[path] = str(error)
                    continue
                for bad in damaged if own else ():
                    log.warning(
                        "resuming from %s; the newer, damaged checkpoint was renamed to %s",
                        path,
                        rename_damaged_checkpoint(bad),
                    )
                return saved
        except OSError as error:
            raise CheckpointError(
                f"{self.directory} cannot be read: {error}; check its permissions and its disk"
            ) from error
        if damaged:
            raise CheckpointError(
                f"every checkpoint in {folders[-1]} is damaged: {'; '.join(damaged.values())}; "
                "restore one from a copy, or remove all of them to start over"
            )
        return None

    def _receive(self, announced: Mapping[str, Any], found: Saved | None) -> Saved:
        arrays = (
            split(found.state)[1] if found else {n: empty_checkpoint_array(d) for n, d in announced["arrays"].items()}
        )
        if self._group.size > 1:
            for name in announced["arrays"]:
                self._group.broadcast(arrays[name].reshape(-1).view(np.uint8))
        return found or Saved(announced["step"], join(announced["tree"], arrays), Path(announced["path"]))
