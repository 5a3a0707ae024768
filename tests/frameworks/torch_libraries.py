"""Libraries on PyTorch that are installed, for the process that forks the ranks of their recipes."""

import contextlib

import torch  # noqa: F401

with contextlib.suppress(ImportError):
    import lightning  # noqa: F401
with contextlib.suppress(ImportError):
    import ringtrain.transformers  # noqa: F401
