"""Checkpoints below a URI: every rank writes its part of the state, and reads the parts that it needs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from ringtrain._core.process_groups.formations import CARRIED
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain._core.reduction.cuts import ArrayPart
from ringtrain.checkpoint.complete import complete_checkpoints, remove_old_checkpoints, step_of
from ringtrain.checkpoint.format import (
    DamagedCheckpoint,
    checked_checkpoint_step,
    describe_checkpoint_arrays,
    join,
    split_parts,
)
from ringtrain.checkpoint.locations import JobCheckpoints, ObjectLocation, checkpoint_object_location, own_folder
from ringtrain.checkpoint.shards import own_part, read_manifest, stored_arrays, write_manifest, write_shard
from ringtrain.checkpoint.store import EarlierStepNotice, Saved
from ringtrain.errors import CheckpointError, ConfigurationError, MismatchError, ObjectMissing, StorageError
from ringtrain.report import report_start
from ringtrain.shared.storage import ObjectStore

log = logging.getLogger("ringtrain.checkpoint")

# Interval, in the background, at which rank 0 checks whether the others have written.
_LOOK_FIRST_S = 0.1
_LOOK_LAST_S = 2.0

# concurrent.futures ends its own threads with this function; callbacks run in reverse order.
_REGISTER_AT_EXIT = "_register_atexit"

Load = Callable[[Any], object]


class ShardedCheckpoints:
    """Checkpoints below a URI; the latest `keep` are retained. All methods except `finish` and `close` are collective.

        checkpoints = ShardedCheckpoints("s3://bucket/digits")
        checkpoints.latest(lambda state: opt.load_state_dict(state["optimizer"]))
        checkpoints.save(step, {"optimizer": opt.shard_dict(), "epoch": epoch}, background=True)

    Each rank writes its own objects, then rank 0 writes a manifest; without a manifest there is no checkpoint. Each
    save has unique names, and each attempt of a job its own folder, so that no process overwrites another's objects.
    Maturity: s3 Beta, gs Experimental, az Experimental.
    """

    def __init__(
        self, uri: str, *, keep: int = 3, group: CollectiveGroup | None = None, deadline_s: float = 600.0
    ) -> None:
        """Open the store, without a request to it.

        `deadline_s`: limit for each call to the store, and for the wait of rank 0 for the other ranks in the
        background.
        """
        if keep < 1:
            raise ConfigurationError(f"keep is {keep}; expected at least 1 checkpoint to keep")
        self.uri = uri
        self._store = ObjectStore(uri, deadline_s)
        self._job = JobCheckpoints.from_env(os.environ)
        self._keep = keep
        self._group = group or group_of()
        self._deadline_s = deadline_s
        self._writer: threading.Thread | None = None
        self._failure: str = ""
        self._waits_at_exit = False
        self._earlier = EarlierStepNotice()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, step: int, state: Mapping[str, Any], *, background: bool = False) -> None:
        """Write `state` as the checkpoint of `step`, and remove the oldest checkpoints. Collective.

        `state` may contain the same types as for `Checkpoints.save`. Its arrays are either equal on all ranks, each of
        which writes a part of them, or this rank's parts (`opt.shard_dict()`). Numbers and strings are those of rank 0.
        `background`: whether to return when the ranks have agreed, and write on a thread. If True, do not change
        `state` until the next save() or finish().
        Raises CheckpointError on every rank, for this save or an earlier one in the background, with the rank that
        could not write; earlier checkpoints are retained. Raises MismatchError if states differ.
        """
        tree, arrays = split_parts(state)
        step = checked_checkpoint_step(step)
        described = describe_checkpoint_arrays(arrays)
        rank, size = self._group.rank, self._group.size
        parts = {name: part for name, array in arrays.items() if (part := own_part(name, array, rank, size))}
        folder = self._agree(step, described)
        store = self._store.below(folder)
        if background:
            # Not a daemon, so that the interpreter waits for it before it exits.
            self._writer = threading.Thread(
                target=self._write_in_background,
                args=(store, step, tree, described, parts),
                name="ringtrain-checkpoint",
            )
            self._writer.start()
            self._wait_at_exit()
            return
        self._do(lambda: write_shard(store, rank, parts))
        self._raise_any_failure()
        if rank == 0:
            self._do(lambda: self._complete(store, step, tree, described))
        self._raise_any_failure()

    def finish(self) -> None:
        """Wait for this rank's background write, and raise its error. Not collective.

        Only on rank 0 does it mean that the checkpoint is complete.
        """
        self._join()
        failure, self._failure = self._failure, ""
        if failure:
            raise CheckpointError(failure)

    def close(self) -> None:
        """Wait for a write in progress, and close the connections."""
        self._join()
        self._store.close()

    def latest(self, load: Load | None = None) -> Saved | None:
        """Return the newest complete and undamaged checkpoint; None if there is none. Collective.

        Without `load` every rank reads all of it. `load(state)` is called with arrays that are not yet read; it reads
        what this rank needs by `opt.load_state_dict`, `array.read(start, stop)` or `np.asarray(array)`. If a rank finds
        an object missing or different from its checksum, all ranks log it and try the previous checkpoint, and `load`
        is called again. Raises CheckpointError on every rank if all are damaged, if the store cannot be read, and if
        `spec.checkpoint.restoreFrom` names a job that does not exist.
        """
        self._join()
        damaged: dict[str, str] = {}
        candidates: list[str] = []
        while True:
            # List them again after all were tried: a process that saves meanwhile removes the oldest.
            candidates = candidates or [c for c in self._announced_candidates() if c not in damaged]
            if not candidates:
                self._report_no_checkpoint(list(damaged.values()))
                return None
            candidate = candidates.pop(0)
            store = self._store.below(candidate) if "://" not in candidate else self._store.at(candidate)
            found, problem = self._attempt_load(store, load)
            if found is not None:
                if self._group.rank == 0:
                    report_start(found.step, store.uri)
                    CARRIED.restored = store.uri
                return found
            damaged[candidate] = problem
            if self._group.rank == 0:
                log.warning("%s; trying the previous checkpoint", problem)

    def _report_no_checkpoint(self, damaged: list[str]) -> None:
        if damaged:
            raise CheckpointError(
                f"every checkpoint below {self.uri} is damaged: {'; '.join(damaged)}; restore one "
                "from a copy, or remove all of them to start over"
            )
        if self._group.rank == 0:
            report_start(0, "")

    def _attempt_load(self, store: ObjectStore, load: Load | None) -> tuple[Saved | None, str]:
        """Load the checkpoint in `store` on all ranks. Return the checkpoint and "".

        If a rank finds the checkpoint damaged, return None and the reason. `load`: see `latest`.
        """
        manifest = self._announced_manifest(store)
        error: Exception | None = None
        saved: Saved | None = None
        try:
            if "damaged" in manifest:
                raise DamagedCheckpoint(manifest["damaged"])
            stored = stored_arrays(store, manifest)
            if load is None:
                state = join(manifest["tree"], {name: np.asarray(array) for name, array in stored.items()})
            else:
                state = join(manifest["tree"], stored, lazy=True)
                load(state)
            saved = Saved(manifest["step"], state, store.uri)
        except Exception as caught:
            error = caught
        kind = "" if error is None else "damaged" if isinstance(error, DamagedCheckpoint) else "failed"
        outcomes = self._group.allgather_object([kind, str(error or "")], "checkpoint loaded")
        failed = [f"rank {rank}: {text}" for rank, (kind, text) in enumerate(outcomes) if kind == "failed"]
        if error is not None and not isinstance(error, DamagedCheckpoint):
            raise error
        if failed:
            raise CheckpointError(f"{store.uri} cannot be loaded: {failed[0]}")
        worse = [f"rank {rank}: {text}" for rank, (kind, text) in enumerate(outcomes) if kind]
        return (None, worse[0]) if worse else (saved, "")

    def _announced_manifest(self, store: ObjectStore) -> dict[str, Any]:
        announced: dict[str, Any] = {}
        if self._group.rank == 0:
            try:
                announced = read_manifest(store)
            except (DamagedCheckpoint, ObjectMissing) as error:
                announced = {"damaged": str(error)}
            except StorageError as error:
                announced = {"error": str(error)}
        announced = self._group.broadcast_object(announced, "checkpoint manifest")
        if "error" in announced:
            raise CheckpointError(announced["error"])
        return announced

    def _announced_candidates(self) -> list[str]:
        """Return the folders of checkpoints that rank 0 found, newest first."""
        announced: dict[str, Any] = {}
        if self._group.rank == 0:
            try:
                announced = {"found": self._find(checkpoint_object_location(self._store, self._job))}
            except (CheckpointError, StorageError) as error:
                announced = {"error": str(error)}
        announced = self._group.broadcast_object(announced, "checkpoints found")
        if "error" in announced:
            raise CheckpointError(announced["error"])
        found: list[str] = announced["found"]
        return found

    def _find(self, location: ObjectLocation) -> list[str]:
        found = [folder for place in location.own_first for folder in complete_checkpoints(self._store, place)]
        if found or location.source is None:
            return found
        source = self._store.at(location.source)
        places = (*reversed([name for name in source.folders() if name.startswith("attempt-")]), "")
        found = [f"{source.uri}/{folder}" for place in places for folder in complete_checkpoints(source, place)]
        if not found:
            raise CheckpointError(
                f"checkpoint.restoreFrom names {source.uri}, which has no checkpoint; remove restoreFrom to start "
                "without one"
            )
        return found

    def _agree(self, step: int, described: Mapping[str, Any]) -> str:
        """Check that all ranks save the same step and arrays, and none failed before; return the folder to write."""
        self._join()
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        failure, self._failure = self._failure, ""
        own = own_folder(self._store, self._job)
        folder = f"{own}/ckpt-{step:010d}-{time.time_ns() // 1_000_000:012x}".lstrip("/")
        outcomes = self._group.allgather_object([failure, step, digest, folder], "checkpoint saved")
        _raise_first_save_failure([failure for failure, *_ in outcomes])
        if any(of_rank[1:3] != outcomes[0][1:3] for of_rank in outcomes):
            states = self._group.allgather_object([step, dict(described)], "checkpoint of other arrays")
            raise _ranks_with_other_states(states)
        return str(outcomes[0][3])

    def _raise_any_failure(self) -> None:
        failure, self._failure = self._failure, ""
        _raise_first_save_failure(self._group.allgather_object(failure, "checkpoint written"))

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failure = str(error) or type(error).__name__

    def _write_in_background(
        self,
        store: ObjectStore,
        step: int,
        tree: Any,
        described: Mapping[str, Any],
        parts: Mapping[str, ArrayPart],
    ) -> None:
        rank = self._group.rank
        try:
            write_shard(store, rank, parts)
            if rank == 0:
                self._wait_for_others(store)
                self._complete(store, step, tree, described)
        except Exception as error:
            log.error("%s", error)  # logged here too, because training may end before the next call
            self._failure = str(error) or type(error).__name__
            if rank:  # so that rank 0 stops waiting
                with suppress(StorageError):
                    store.write(f"rank-{rank:05d}.failed", self._failure.encode())

    def _wait_for_others(self, store: ObjectStore) -> None:
        deadline, pause = time.monotonic() + self._deadline_s, _LOOK_FIRST_S
        expected = {f"rank-{rank:05d}.json" for rank in range(self._group.size)}
        while True:
            names = set(store.names())
            failed = sorted(name for name in names if name.endswith(".failed"))
            if failed:
                raise CheckpointError(f"{store.uri}/{failed[0]}: {store.read(failed[0]).decode(errors='replace')}")
            missing = sorted(expected - names)
            if not missing:
                return
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"{store.uri} is not complete: {missing[0]} and others, {len(missing)} in all, were not written "
                    f"within {self._deadline_s:g} s; look at the log of rank {int(missing[0][5:10])}"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, _LOOK_LAST_S)

    def _complete(self, store: ObjectStore, step: int, tree: Any, described: Mapping[str, Any]) -> None:
        write_manifest(store, step, tree, described, self._group.size)
        newest = store.uri.removeprefix(f"{self._store.uri}/")
        try:
            location = checkpoint_object_location(self._store, self._job)
            latest = remove_old_checkpoints(self._store, location, self._keep, newest, self._deadline_s)
        except StorageError as error:  # the checkpoint is complete, and the next save tries again
            log.warning("old checkpoints below %s could not be removed; the next save tries again: %s", self.uri, error)
        else:
            self._earlier.tell(step, step_of(latest), self.uri)

    def _wait_at_exit(self) -> None:
        """Make the interpreter wait for the writer at exit, before it ends the threads that store clients use.

        Other threads are joined after that.
        """
        if self._waits_at_exit:
            return
        self._waits_at_exit = True
        close = weakref.WeakMethod(self.close)

        def wait() -> None:
            if (method := close()) is not None:
                method()

        getattr(threading, _REGISTER_AT_EXIT)(wait)

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None


def _ranks_with_other_states(states: Sequence[Any]) -> MismatchError:
    """Build the error for ranks that save different states. `states`: step and array descriptions of each rank."""
    step, arrays = states[0]
    rank = next(rank for rank, of_rank in enumerate(states) if of_rank != states[0])
    other_step, others = states[rank]
    if other_step != step:
        what = f"step ({other_step}, {step} on rank 0)"
    else:
        name = min(name for name in {*arrays, *others} if arrays.get(name) != others.get(name))
        here, there = ("{dtype} {shape}".format(**of[name]) if name in of else "absent" for of in (others, arrays))
        what = f"arrays ({name!r} is {here} on rank {rank}, but {there} on rank 0)"
    return MismatchError(
        f"checkpoint: rank {rank} saves other {what} than rank 0; every rank must save the same step and arrays of "
        "the same names, types and shapes: call shard_dict() with the same arguments"
    )


def _raise_first_save_failure(failures: list[str]) -> None:
    for rank, failure in enumerate(failures):
        if failure:
            raise CheckpointError(f"rank {rank}: {failure}")
