"""Run many checks in one world of real ranks, because starting a process with PyTorch or TensorFlow costs seconds.

A module of checks has functions `check_*`, which run on every rank, one after the other, in the order of the file.
Where it has a function `run`, its functions `script_*` are checks too: what `run(script, name)` says of each.
Both may be made by a call. Each is reported as a test of its own. The ranks are forked from a process that has
imported the framework (`frameworks.worlds`).
"""

import ast
import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
# Modules of checks: those of this folder are imported as `frameworks.NAME`, those of a plugin as `NAME`.
PLUGIN_TESTS = sorted(HERE.parents[1].glob("plugins/*/tests"))
ENV = {
    "RINGTRAIN_TIMEOUT": "90",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "KERAS_BACKEND": "tensorflow",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
}
SIZES = [1, 2, 3, 4]

# Backend of torch.distributed by the kind of device on which checks of ringtrain.torch make tensors. CUDA where
# there is a GPU: looked for as a file, since asking PyTorch would cost each test process its import.
TORCH_DEVICES = {"cpu": "gloo"} | ({"cuda": "nccl"} if Path("/dev/nvidia0").exists() else {})


def device_env(device: str) -> tuple[tuple[str, str], ...]:
    """What has `torch_values` make tensors on `device`."""
    if device == "cpu":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in range(16)))
    return (("RINGTRAIN_TEST_DEVICE", device), ("CUDA_VISIBLE_DEVICES", visible))


@dataclass(frozen=True)
class Checks:
    """Modules of checks that share a world. `framework`: the module to import before ranks are forked. `env`: more
    variables for them.
    """

    framework: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        """`module.check` for each check, found without importing a module (and a framework with it)."""
        return [f"{module}.{name}" for module in self.modules for name in _names_in(module)]

    def failure(self, check: str, size: int, among: tuple[str, ...] = ()) -> str:
        """How `check` failed in a world of `size` ranks: the tracebacks of all ranks; empty if it did not.

        `among`: the checks that the world runs, `check` one of them; all of them unless given.
        """
        question = " ".join([str(size), *among])
        failed = _answer(("worlds", self.framework, *self.modules), self.env, question)
        return failed.get("*", "") or failed.get(check, "")


@dataclass(frozen=True)
class Scenarios:
    """A module of checks that start ranks of their own, forked from a process that has imported `framework`."""

    framework: str
    module: str
    env: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        return _names_in(self.module)

    def failure(self, check: str) -> str:
        """How `check` failed: its traceback; empty if it did not."""
        failed = _answer(("scenarios", self.framework, self.module), self.env, check)
        return failed.get("*", "") or failed.get(check, "")


def import_checks(module: str) -> ModuleType:
    """Import a module of checks by its short name."""
    return importlib.import_module(f"frameworks.{module}" if _path_of(module).parent == HERE else module)


def run_checks(modules: tuple[str, ...], among: tuple[str, ...] = ()) -> dict[str, str]:
    """In a rank: run every check of `modules`, or those `among`; return the traceback of each that failed."""
    failed = {}
    for module in modules:
        loaded = import_checks(module)
        for name in _names_in(module):
            if among and f"{module}.{name}" not in among:
                continue
            check = getattr(loaded, name)
            try:
                loaded.run(check, name) if name.startswith("script_") else check()
            except BaseException:
                failed[f"{module}.{name}"] = traceback.format_exc()
    return failed


@functools.cache
def _answer(program: tuple[str, ...], env: tuple[tuple[str, str], ...], question: str) -> dict[str, str]:
    """What a server of ranks says to a line: how each check failed, by name; under "*" why there is no answer."""
    server = _server(program, env)
    server.stdin.write(f"{question}\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    return json.loads(answer) if answer else {"*": f"the process that forks ranks ended: {server.wait()}"}


# By program and variables.
_servers: dict[Any, tuple["subprocess.Popen[str]", "tempfile.TemporaryDirectory[str]"]] = {}


def _server(program: tuple[str, ...], more: tuple[tuple[str, str], ...]) -> "subprocess.Popen[str]":
    """`program`: `worlds` or `scenarios`, and its arguments. It lives until `end_servers`."""
    if (program, more) not in _servers:
        name, *arguments = program
        command = [sys.executable, "-m", f"frameworks.{name}", *arguments]
        env = {**os.environ, **ENV, **dict(more), "PYTHONPATH": os.pathsep.join(map(str, [HERE.parent, *PLUGIN_TESTS]))}
        # Ranks that are forked do not run what TensorFlow registers to remove its generated files at the end.
        folder = tempfile.TemporaryDirectory(prefix="rt-")
        env["TMPDIR"] = folder.name
        server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _servers[program, more] = server, folder
    return _servers[program, more][0]


@atexit.register
def end_servers() -> None:
    """End the processes that fork ranks: each holds a framework in memory, and ports."""
    while _servers:
        server, folder = _servers.popitem()[1]
        server.kill()
        server.wait()
        folder.cleanup()


def _path_of(module: str) -> Path:
    paths = [folder / f"{module}.py" for folder in (HERE, *PLUGIN_TESTS)]
    return next(path for path in paths if path.exists())


def _names_in(module: str) -> list[str]:
    tree = ast.parse(_path_of(module).read_text())
    made = [node.targets[0] if isinstance(node, ast.Assign) else node for node in tree.body]
    names = [getattr(node, "name", getattr(node, "id", "")) for node in made]
    return [name for name in names if name.startswith(("check_", "script_"))]
