"""Run many tests in one world of real ranks, because starting a process with PyTorch or TensorFlow costs seconds.

Ranks are forked from a process that has imported the framework (`frameworks.worlds`), and serves all worlds of that
framework. Tests that start ranks of their own run in a process of their file (`frameworks.scenarios`).
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PLUGIN_TESTS = sorted(HERE.parents[1].glob("plugins/*/tests"))
# Options of a JVM that lives for seconds: its optimizing compiler would use more processor time than it saves.
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENV = {
    "RINGTRAIN_TIMEOUT": "90",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "KERAS_BACKEND": "tensorflow",
    "JAX_PLATFORMS": "cpu",
    # What one rank has compiled, all ranks and worlds use.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "CUDA_VISIBLE_DEVICES": "",
}
# Backend of torch.distributed by the kind of device on which checks of ringtrain.torch make tensors. CUDA where
# there is a GPU: looked for as a file, since asking PyTorch would cost each test process its import.
TORCH_DEVICES = {"cpu": "gloo"} | ({"cuda": "nccl"} if Path("/dev/nvidia0").exists() else {})


# Of the tests of a world: name to the tracebacks of all ranks that it failed on; under "*" why there is no answer.
Failures = dict[str, str]
Variables = tuple[tuple[str, str], ...]


def device_env(device: str) -> Variables:
    """Return the variables with which `torch_values` creates tensors on `device`."""
    if device == "cpu":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in range(16)))
    return (("RINGTRAIN_TEST_DEVICE", device), ("CUDA_VISIBLE_DEVICES", visible))


class Server(NamedTuple):
    """A process that has imported a framework: the module and arguments of its program, and variables for it."""

    program: tuple[str, ...]
    env: Variables


def world_server(framework: str, env: Variables) -> Server:
    """The server that forks worlds. Those of other `RINGTRAIN_` variables, which ranks alone read, share it."""
    return Server(("worlds", framework), tuple(one for one in env if not one[0].startswith("RINGTRAIN_")))


def scenario_server(framework: str, path: Path, env: Variables) -> Server:
    """The server that runs tests of the file `path` which start ranks of their own."""
    return Server(("scenarios", framework, str(path)), env)


@functools.cache
def failures_in_world(
    framework: str, env: Variables, ranks: int, files: tuple[tuple[Path, tuple[str, ...]], ...], judge: str = ""
) -> Failures:
    """Run tests of `files` in one world. A failure's name is `file.test`."""
    question = {
        "files": [(str(path), tests) for path, tests in files],
        "ranks": ranks,
        "env": dict(one for one in env if one[0].startswith("RINGTRAIN_")),
        "judge": judge,
    }
    return _answer(world_server(framework, env), json.dumps(question))


def failure_of_scenario(framework: str, env: Variables, path: Path, test: str) -> str:
    """Run a test that starts ranks of its own; return its traceback, or nothing."""
    failed = _answer(scenario_server(framework, path, env), test)
    return failed.get("*", "") or failed.get(test, "")


def _answer(server: Server, question: str) -> Failures:
    process = _started(server)
    process.stdin.write(f"{question}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    return json.loads(answer) if answer else {"*": f"the process that forks ranks ended: {process.wait()}"}


_servers: dict[Server, tuple["subprocess.Popen[str]", "tempfile.TemporaryDirectory[str]"]] = {}
_compiled = tempfile.TemporaryDirectory(prefix="rt-compiled-")


def inherited_path() -> list[str]:
    """Return the folders in PYTHONPATH, so that processes of tests import the same packages as the tests."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _started(server: Server) -> "subprocess.Popen[str]":
    if server not in _servers:
        name, *arguments = server.program
        command = [sys.executable, "-m", f"frameworks.{name}", *arguments]
        path = os.pathsep.join(map(str, [HERE.parent, *PLUGIN_TESTS, *inherited_path()]))
        # Ranks that are forked do not run what TensorFlow registers to remove its generated files at the end.
        folder = tempfile.TemporaryDirectory(prefix="rt-")
        env = {**os.environ, **ENV, **dict(server.env), "PYTHONPATH": path, "TMPDIR": folder.name}
        env["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _servers[server] = process, folder
    return _servers[server][0]


@atexit.register
def end_servers(but: Server | None = None) -> None:
    """End the processes that fork ranks: each holds a framework in memory, and ports."""
    for server in [one for one in _servers if one != but]:
        process, folder = _servers.pop(server)
        process.kill()
        process.wait()
        folder.cleanup()
