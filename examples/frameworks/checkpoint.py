"""Checkpoint file from which the PyTorch examples resume after a restart."""

import os
from pathlib import Path
from typing import Any

import torch

from ringtrain.checkpoint import attempt_directory, readable_directories


class Checkpoint:
    """A file in `directory`, by default in those that the job keeps for its attempts; without either, nothing.

    Only rank 0 writes.
    """

    def __init__(self, name: str, directory: Path | None = None) -> None:
        own = directory or attempt_directory()
        self.path = own / name if own else None
        self._readable = [folder / name for folder in ((directory,) if directory else readable_directories())]

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`, so that a file of this name is always a whole one. `state["done"]`: what it is after."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, self.path)

    def load(self) -> dict[str, Any] | None:
        """Return what was saved last, if anything."""
        path = next((path for path in self._readable if path.exists()), None)
        if path is None:
            return None
        state: dict[str, Any] = torch.load(path, weights_only=True)
        print(f"resumed from {path} after {state['done']}", flush=True)
        return state
