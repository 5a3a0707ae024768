"""Programs of others for tests: commands that are run, and scripts that are modules of no package."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from support.deadlines import patient

# Of what hangs: the machine may be busy, and what is run takes seconds.
DEADLINE_S = patient(240.0)


def completed(
    words: Sequence[str | Path], *, timeout: float = DEADLINE_S, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """The command once it has ended, with its output as text; `options` are those of `subprocess.run`."""
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **options)


def ringtrain_run(directory: Path, *words: str, **env: str) -> "subprocess.Popen[str]":
    """`ringtrain run`, begun in `directory`, which has its temporary files, too; its output is in pipes."""
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
    """A script as a module, in a process that has it once."""
    name = f"script_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
