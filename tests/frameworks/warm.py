"""A framework imported by a process from which ranks are forked."""

import gc
import importlib
import sys

import pytest  # noqa: F401


def import_once(framework: str) -> None:
    """Import it, with what it would import in each rank later on."""
    importlib.import_module(framework)
    if "tensorflow" in sys.modules:
        importlib.import_module("ringtrain.tensorflow")
    if "torch" in sys.modules:
        import torch

        weight = torch.nn.Parameter(torch.ones(1))
        weight.grad = torch.ones(1)
        torch.optim.SGD([weight]).step()  # its first step imports the compiler, which takes as long as torch
    gc.freeze()  # ranks need not look through all this for garbage again and again, and at their ends
