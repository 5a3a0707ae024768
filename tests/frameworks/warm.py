"""A framework imported by a process from which ranks are forked."""

import gc
import importlib
import sys

import pytest  # noqa: F401

# TensorFlow imports these where they are installed. Its tests use none of them, and they are a third of its import.
UNUSED = ("IPython", "jax", "pandas")


def import_once(framework: str) -> None:
    """Import it, with what it would import in each rank later on."""
    hidden = {name for name in UNUSED if name not in sys.modules and framework in ("keras", "tensorflow", "tf_keras")}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: as if it were not installed
    importlib.import_module(framework)
    for name in hidden:
        del sys.modules[name]
    if "tensorflow" in sys.modules:
        importlib.import_module("ringtrain.tensorflow")
    if "torch" in sys.modules:
        import torch

        weight = torch.nn.Parameter(torch.ones(1))
        weight.grad = torch.ones(1)
        torch.optim.SGD([weight]).step()  # its first step imports the compiler, which takes as long as torch
    gc.freeze()  # ranks need not look through all this for garbage again and again, and at their ends
