"""Checkpoints: `store` is what a trainer holds, `files` makes them whole or absent, `format` is what is in one."""

from ringtrain.checkpoint.store import Checkpoints, Saved, job_directory

__all__ = ["Checkpoints", "Saved", "job_directory"]
