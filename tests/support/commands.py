"""Runs other programs for tests: commands, and scripts that are not modules of a package."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from support.deadlines import patient

# Limit for a command that hangs. The machine may be busy; a command normally takes seconds.
DEADLINE_S = patient(240.0)


def completed(
    words: Sequence[str | Path], *, timeout: float = DEADLINE_S, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command and return its result, with output as text. `options` are those of `subprocess.run`."""
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **options)


def ringtrain_run(directory: Path, *words: str, **env: str) -> "subprocess.Popen[str]":
    """Start `ringtrain run` in `directory`, which is also its TMPDIR, with its output in pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "ringtrain", "run", *words],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def module_at(path: Path) -> ModuleType:
    """Return a script as a module, loaded once for each process."""
    name = f"script_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
