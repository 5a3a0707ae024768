"""Layout of a job's checkpoints: a folder for each job on its volume, and in it a folder for each attempt.

    <claim>/<job>-<uid>/attempt-0002/ckpt-0000000140.npz

An attempt writes only into its own folder. A gang of an earlier attempt that still runs behind a broken network can
therefore neither change nor remove files of the present one. Readers use the newest attempt that has any checkpoint,
even if an earlier attempt has reached a later step. See docs/decisions/0015-a-folder-for-each-job.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import CheckpointError
from ringtrain.shared import contract
from ringtrain.shared.settings import Settings, integer, path, text
from ringtrain.shared.storage import ObjectStore

_ATTEMPT = re.compile(r"attempt-(\d{4,})")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class JobCheckpoints(Settings):
    """Settings of a job for checkpoints: its locations, its attempt, and the job to restore from."""

    directory: Path | None = path(contract.ENV_CHECKPOINT_DIR)
    uri: str = text(contract.ENV_CHECKPOINT_URI, "")
    restore_from: str = text(contract.ENV_RESTORE_FROM, "")
    attempt: int = integer(contract.ENV_ATTEMPT, 1, low=1)


@dataclass(frozen=True)
class CheckpointLocation:
    """Folders of one `Checkpoints`: `own` is written to; `own`, then `earlier` (newest first) are read.

    `job_dir`: the job's folder if it contains these folders, else None. `below`: path inside `job_dir`. `restore_from`:
    the job to restore from, by its name or folder.
    """

    own: Path
    earlier: tuple[Path, ...] = ()
    job_dir: Path | None = None
    below: Path = Path()
    restore_from: str = ""

    def sources(self) -> tuple[Path, ...]:
        """Return the folders of the job `restore_from`, newest first; empty if no job was named.

        Raises CheckpointError if the folder does not exist, or if several jobs had that name.
        """
        if not self.restore_from or self.job_dir is None:
            return ()
        return _checkpoint_folders(_checkpoint_source(self.job_dir, self.restore_from) / self.below)


@dataclass(frozen=True)
class ObjectLocation:
    """Folders of checkpoints in an object store: `own` is written to; `own_first` are read in this order.

    An empty name is the store itself. `source`: URI of the folder to restore from if the folders `own_first` contain no
    checkpoint.
    """

    own: str
    own_first: tuple[str, ...]
    source: str | None = None


def checkpoint_object_location(store: ObjectStore, config: JobCheckpoints) -> ObjectLocation:
    """Return the folders of checkpoints in `store`. If the store is not below the job's own URI, the only folder is the
    store itself.

    Raises StorageError, and CheckpointError if `restoreFrom` matches no job or several.
    """
    if not _is_checkpoint_store_of_job(store, config):
        return ObjectLocation("", ("",))
    job, own = config.uri.rstrip("/"), own_folder(store, config)
    matches = (match for name in store.folders() if (match := _ATTEMPT.fullmatch(name)))
    earlier = sorted((match for match in matches if int(match[1]) < config.attempt), key=lambda m: -int(m[1]))
    source = _checkpoint_object_source(store, job, config.restore_from) if config.restore_from else None
    below = store.uri[len(job) :]
    return ObjectLocation(own, (own, *(m[0] for m in earlier)), source + below if source else None)


def own_folder(store: ObjectStore, config: JobCheckpoints) -> str:
    """Return the folder to which this attempt writes. Makes no request to the store."""
    return f"attempt-{config.attempt:04d}" if _is_checkpoint_store_of_job(store, config) else ""


def _is_checkpoint_store_of_job(store: ObjectStore, config: JobCheckpoints) -> bool:
    job = config.uri.rstrip("/")
    return bool(job) and f"{store.uri}/".startswith(f"{job}/")


def _checkpoint_object_source(store: ObjectStore, job: str, name: str) -> str:
    base = store.at(job.rpartition("/")[0])
    jobs = base.folders()
    if name in jobs:
        return f"{base.uri}/{name}"
    own = job.rpartition("/")[2]
    found = [j for j in jobs if j != own and j.startswith(f"{name}-") and _UID.fullmatch(j[len(name) + 1 :])]
    if len(found) == 1:
        return f"{base.uri}/{found[0]}"
    way_out = "set checkpoint.restoreFrom to one of them" if found else f"there are {', '.join(jobs) or 'none'}"
    raise CheckpointError(
        f"checkpoint.restoreFrom is {name!r}: {len(found)} jobs of this name have checkpoints below {base.uri} "
        f"({', '.join(found) or 'none'}); {way_out}"
    )


def job_uri() -> str:
    """Return the URI below which the job stores checkpoints (RINGTRAIN_CHECKPOINT_URI); empty if it has none."""
    return JobCheckpoints.from_env(os.environ).uri


def job_directory() -> Path | None:
    """Return the directory of the job's checkpoints (RINGTRAIN_CHECKPOINT_DIR), in which `Checkpoints` creates a folder
    for each attempt; None if the job has no directory."""
    return JobCheckpoints.from_env(os.environ).directory


def attempt_directory() -> Path | None:
    """Return this attempt's folder for files of other libraries, created if needed; None if the job has no directory.

    `readable_directories` returns the folders of earlier attempts. Raises CheckpointError.
    """
    job = JobCheckpoints.from_env(os.environ)
    if job.directory is None:
        return None
    own = checkpoint_location_of(job.directory, job).own
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{own} cannot be created: {error.strerror or error}") from error
    return own


def readable_directories() -> tuple[Path, ...]:
    """Return the folders to restore from, in order: of this attempt, of earlier attempts, and of the job in
    `spec.checkpoint.restoreFrom`. Raises CheckpointError if that matches no job or several."""
    job = JobCheckpoints.from_env(os.environ)
    if job.directory is None:
        return ()
    location = checkpoint_location_of(job.directory, job)
    return (location.own, *location.earlier, *location.sources())


def checkpoint_location_of(directory: Path, config: JobCheckpoints) -> CheckpointLocation:
    """Return the folders that a `Checkpoints` of `directory` writes and reads. If `directory` is in the job's own
    folder, each attempt has a subfolder of `directory`; otherwise the only folder is `directory`."""
    job_dir = config.directory
    if job_dir is None or not directory.absolute().is_relative_to(job_dir.absolute()):
        return CheckpointLocation(directory)
    own = directory / f"attempt-{config.attempt:04d}"
    return CheckpointLocation(
        own,
        tuple(folder for folder in _checkpoint_folders(directory, below=config.attempt) if folder != own),
        job_dir,
        directory.absolute().relative_to(job_dir.absolute()),
        config.restore_from,
    )


def _checkpoint_folders(directory: Path, below: int | None = None) -> tuple[Path, ...]:
    """Return the folders of attempts in `directory` (of attempts before `below`), newest first, then `directory`."""
    found: dict[int, Path] = {}
    if directory.is_dir():
        for path in directory.iterdir():
            match = _ATTEMPT.fullmatch(path.name)
            if match and path.is_dir() and (below is None or int(match[1]) < below):
                found[int(match[1])] = path
    return (*(path for _, path in sorted(found.items(), reverse=True)), directory)


def _checkpoint_source(job_dir: Path, name: str) -> Path:
    claim = job_dir.parent
    if (claim / name).is_dir():
        return claim / name
    named = (path for path in sorted(claim.glob(f"{name}-*")) if _UID.fullmatch(path.name[len(name) + 1 :]))
    found = [path for path in named if path.is_dir() and path != job_dir]
    if len(found) == 1:
        return found[0]
    way_out = (
        "set checkpoint.restoreFrom to one of them"
        if found
        else f"there are {_checkpoint_folder_names(sorted(claim.iterdir()))}"
    )
    raise CheckpointError(
        f"checkpoint.restoreFrom is {name!r}: {len(found)} jobs of this name have checkpoints on the volume "
        f"({_checkpoint_folder_names(found)}); {way_out}"
    )


def _checkpoint_folder_names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths if path.is_dir()) or "none"
