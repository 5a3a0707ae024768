"""Checkpoints: `store` is what a trainer holds; `places`, `files`, `format`: where, how whole, what is in one."""

from ringtrain.checkpoint.locations import attempt_directory, job_directory, readable_directories
from ringtrain.checkpoint.store import Checkpoints, Saved

__all__ = ["Checkpoints", "Saved", "attempt_directory", "job_directory", "readable_directories"]


def __dir__() -> list[str]:
    return __all__
