"""Checkpoints of a job: rank 0 writes them, and every rank resumes from the same one."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringtrain.checkpoint.files import (
    OnStage,
    checkpoint_path,
    checkpoints_by_step,
    remove_old,
    set_aside,
    write_atomically,
)
from ringtrain.checkpoint.format import (
    DamagedCheckpoint,
    describe,
    empty_like,
    join,
    read_state,
    split,
    write_state,
)
from ringtrain.collectives.session import current
from ringtrain.errors import CheckpointError, ConfigurationError
from ringtrain.group import Group, world_group

log = logging.getLogger("ringtrain.checkpoint")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: the `step` and `state` given to `save`, with lists in the place of tuples."""

    step: int
    state: Any
    path: Path


def job_directory() -> Path | None:
    """Return where the job keeps checkpoints across attempts (RINGTRAIN_CHECKPOINT_DIR); None if it keeps none.

    Raises NotInitializedError.
    """
    return current().config.checkpoint_dir


class Checkpoints:
    """The checkpoints in one directory, of which the latest `keep` stay.

        checkpoints = Checkpoints(directory)
        if saved := checkpoints.latest(): opt.load_state_dict(saved.state["optimizer"])
        checkpoints.save(step, {"optimizer": opt.state_dict(root=0)})

    Only rank 0 touches the directory; it may be on one node only. What rank 0 read is broadcast, so that all ranks
    resume from the same file whatever they could see of it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        group: Group | None = None,
        on_stage: OnStage = lambda stage: None,
    ) -> None:
        """`on_stage`: called by rank 0 when a file has been written, synced and renamed; for scripted faults."""
        if keep < 1:
            raise ConfigurationError(f"keep is {keep}; expected at least 1 checkpoint to keep")
        self.directory = Path(directory)
        self._keep = keep
        self._group = group or world_group()
        self._on_stage = on_stage
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, step: int, state: Mapping[str, Any], *, background: bool = False) -> None:
        """Write `state` as the checkpoint of `step`, atomically, and remove the oldest ones.

        Only rank 0 does anything; the others may pass whatever they have, and return at once. `state` is dicts
        with string keys, lists, arrays of numbers or booleans, numbers, strings, booleans and None. Raises
        CheckpointError when it cannot be written; earlier checkpoints are then still there.
        `background`: write on a thread and return at once. The others then need not wait for a slow disk, which
        they do for RINGTRAIN_TIMEOUT at most. `state` must stay as it is (a `state_dict` does) until the next
        save() or finish(), which raises what went wrong.
        """
        self.finish()
        if self._group.rank != 0:
            return
        if step < 0:
            raise ConfigurationError(f"checkpoint: step is {step}; expected 0 or more")
        if not background:
            self._write(step, state)
            return
        # Not a daemon: the interpreter waits for it before it ends.
        self._writer = threading.Thread(target=self._write_apart, args=(step, state), name="ringtrain-checkpoint")
        self._writer.start()

    def finish(self) -> None:
        """Return when a save in the background is done; raise what made it fail."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write_apart(self, step: int, state: Mapping[str, Any]) -> None:
        try:
            self._write(step, state)
        except Exception as error:
            log.error("%s", error)  # here too, because training may end before anyone asks
            self._failure = error

    def _write(self, step: int, state: Mapping[str, Any]) -> None:
        path = checkpoint_path(self.directory, step)
        try:
            write_atomically(path, lambda file: write_state(file, step, state), self._on_stage)
            remove_old(self.directory, self._keep, path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be written: {error.strerror or error}; check the space and rights of "
                f"{self.directory}"
            ) from error

    def latest(self) -> Saved | None:
        """Return the newest checkpoint that is whole; None when there is none at all. Collective.

        A damaged one is logged and renamed to `….damaged`, and the one before it is used. Raises CheckpointError
        on every rank when all are damaged (better than starting over in silence) or the directory cannot be read.
        """
        self.finish()
        found: Saved | None = None
        told: dict[str, Any] = {}
        if self._group.rank == 0:
            try:
                found = self._read_latest()
                told = _announcement(found)
            except CheckpointError as error:
                told = {"error": str(error)}
        told = self._group.broadcast_object(told)
        if "error" in told:
            raise CheckpointError(told["error"])
        if "step" not in told:
            return None
        return self._receive(told, found)

    def _read_latest(self) -> Saved | None:
        damaged: list[Path] = []
        reasons: list[str] = []
        try:
            for step, path in checkpoints_by_step(self.directory).items():
                try:
                    saved = Saved(step, read_state(path), path)
                except DamagedCheckpoint as error:
                    log.warning("%s; trying the checkpoint before it", error)
                    damaged.append(path)
                    reasons.append(str(error))
                    continue
                for bad in damaged:
                    log.warning("resuming from %s; the damaged one is now %s", path, set_aside(bad))
                return saved
        except OSError as error:
            raise CheckpointError(f"{self.directory}: {error}; make it readable for this user") from error
        if damaged:
            raise CheckpointError(
                f"every checkpoint in {self.directory} is damaged: {'; '.join(reasons)}; restore one, or remove "
                f"them to start over"
            )
        return None

    def _receive(self, told: Mapping[str, Any], found: Saved | None) -> Saved:
        arrays = split(found.state)[1] if found else {n: empty_like(d) for n, d in told["arrays"].items()}
        if self._group.size > 1:
            for name in told["arrays"]:
                self._group.broadcast(arrays[name].reshape(-1).view(np.uint8))
        return found or Saved(told["step"], join(told["tree"], arrays), Path(told["path"]))


def _announcement(saved: Saved | None) -> dict[str, Any]:
    if saved is None:
        return {}
    tree, arrays = split(saved.state)
    described = {name: describe(array) for name, array in arrays.items()}
    return {"step": saved.step, "path": str(saved.path), "tree": tree, "arrays": described}
