"""Run many tests in one world of real ranks, because starting a process with PyTorch or TensorFlow costs seconds.

Worlds (`frameworks.worlds`), and tests that start ranks of their own (`frameworks.scenarios`), are scripts of a warm
Python (`frameworks.warm_python`): a process that has imported the framework forks them.
"""

import atexit
import functools
import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from frameworks.warm_python import ENV, TESTS, inherited_path, shared_python

PLUGIN_TESTS = sorted(TESTS.parent.glob("plugins/*/tests"))
# Options of a JVM that lives for seconds: its optimizing compiler would use more processor time than it saves.
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
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
    with _script(framework, env, "frameworks.worlds") as process:
        try:
            answer, _ = process.communicate(json.dumps(question))
        finally:
            process.kill()
    return _failures(answer, process)


def failure_of_scenario(framework: str, env: Variables, path: Path, test: str) -> str:
    """Run a test that starts ranks of its own; return its traceback, or nothing."""
    process = _scenarios_of(framework, env, path)
    process.stdin.write(f"{test}\n")
    process.stdin.flush()
    failed = _failures(process.stdout.readline(), process)
    return failed.get("*", "") or failed.get(test, "")


@functools.cache
def _scenarios_of(framework: str, env: Variables, path: Path) -> "subprocess.Popen[str]":
    process = _scenarios.enter_context(_script(framework, env, "frameworks.scenarios", str(path)))
    _scenarios.callback(process.kill)
    return process


_scenarios = ExitStack()


@atexit.register
def end_scenarios() -> None:
    """End the processes that run tests of a file."""
    _scenarios_of.cache_clear()
    _scenarios.close()


def _script(framework: str, env: Variables, *words: str) -> "subprocess.Popen[str]":
    # Ranks alone read the others, so that their worlds share a server.
    python = Path(shared_python(framework, **{name: value for name, value in env if not name.startswith("RINGTRAIN_")}))
    path = os.pathsep.join(map(str, [TESTS, *PLUGIN_TESTS, *inherited_path()]))
    # Ranks that are forked do not run what TensorFlow registers to remove its generated files at the end.
    variables = {**os.environ, **ENV, **dict(env), "PYTHONPATH": path, "TMPDIR": str(python.with_name("tmp"))}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([python, "-m", *words], env=variables, text=True, **streams)


def _failures(answer: str, process: "subprocess.Popen[str]") -> Failures:
    return json.loads(answer) if answer else {"*": f"the process that forks ranks ended: {process.wait()}"}
