"""Complete checkpoints below a URI: their list, and the removal of old ones."""

from __future__ import annotations

import re

from ringtrain.checkpoint.locations import ObjectLocation
from ringtrain.checkpoint.shards import MANIFEST
from ringtrain.shared.storage import ObjectStore

NAME = re.compile(r"ckpt-(\d{10,})-([0-9a-f]{12})")


def checkpoint_objects(store: ObjectStore, place: str) -> dict[str, list[str]]:
    """Return the names of the objects of each checkpoint in the folder `place`, newest checkpoint first."""
    found: dict[str, list[str]] = {}
    for name in store.names(place):
        folder, _, _ = name.rpartition("/")
        if folder.rpartition("/")[0] == place and NAME.fullmatch(folder.rpartition("/")[2]):
            found.setdefault(folder, []).append(name)
    return dict(sorted(found.items(), reverse=True))


def complete_checkpoints(store: ObjectStore, place: str) -> list[str]:
    objects = checkpoint_objects(store, place)
    return [folder for folder, names in objects.items() if f"{folder}/{MANIFEST}" in names]


def remove_old_checkpoints(
    store: ObjectStore, location: ObjectLocation, keep: int, newest: str, patience_s: float
) -> str:
    """Remove all but `newest` and the `keep` latest. Return the latest complete checkpoint.

    Incomplete ones are removed if their save began `patience_s` before `newest`; another process may still write
    younger ones.
    """
    given_up, latest = save_began_ms(newest) - 1000 * patience_s, ""
    for place in location.own_first:
        for folder, names in checkpoint_objects(store, place).items():
            whole = f"{folder}/{MANIFEST}" in names
            if folder == newest or (whole and keep > 0) or (not whole and save_began_ms(folder) >= given_up):
                keep -= whole
                latest = latest or (folder if whole else "")
                continue
            # The manifest first: a partly removed checkpoint must have none.
            for name in sorted(names, key=lambda name: not name.endswith(MANIFEST)):
                store.remove(name)
            store.remove_folder(folder)
    return latest or newest


def step_of(folder: str) -> int:
    """Return the step in the name of a checkpoint's `folder`."""
    return int(folder.rpartition("/")[2].split("-")[1])


def save_began_ms(folder: str) -> int:
    """Return the time in ms at which the save began, from the name of a checkpoint's `folder`."""
    return int(folder.rpartition("-")[2], 16)
