"""Checkpoints in a directory (`store`), or below the URI of an object store (`sharded`).

`locations` finds their folders, `owner` locks a folder, `shards` and `format` define the files.
"""

from ringtrain.checkpoint.locations import attempt_directory, job_directory, job_uri, readable_directories
from ringtrain.checkpoint.sharded import ShardedCheckpoints
from ringtrain.checkpoint.stopping import StopRequest
from ringtrain.checkpoint.store import Checkpoints, Saved

__all__ = [
    "Checkpoints",
    "Saved",
    "ShardedCheckpoints",
    "StopRequest",
    "attempt_directory",
    "job_directory",
    "job_uri",
    "readable_directories",
]


def __dir__() -> list[str]:
    return __all__
