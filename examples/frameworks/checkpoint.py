"""Where the PyTorch examples keep what they need to go on after a restart."""

import os
from pathlib import Path
from typing import Any

import torch


class Checkpoint:
    """A file in `directory`, by default the one that the job keeps across attempts; without either, nothing.

    Only rank 0 writes.
    """

    def __init__(self, name: str, directory: Path | None = None) -> None:
        chosen = directory or os.environ.get("RINGTRAIN_CHECKPOINT_DIR")
        self.path = Path(chosen) / name if chosen else None

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
        if self.path is None or not self.path.exists():
            return None
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        print(f"resumed from {self.path} after {state['done']}", flush=True)
        return state
