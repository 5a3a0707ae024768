"""Modules that `import ringtrain` loads, and the time that it takes."""

import os
import sys

import pytest
from support.commands import completed

TIMES_NUMPY = 4.0  # measured: 2; a framework would add 20, and protobuf 1
# One of so many tries: a busy machine makes single ones slower, also in CPU time.
TRIES = 7


def in_a_new_process(program: str) -> list[str]:
    return completed([sys.executable, "-c", program], check=True).stdout.split()


def test_ringtrain_alone_imports_no_framework():
    """Nor anything else that only some jobs need."""
    loaded = in_a_new_process("import sys, ringtrain; ringtrain.init; print(*sys.modules)")
    assert "numpy" in loaded
    assert not {"torch", "tensorflow", "keras", "google.protobuf", "click"} & set(loaded)


@pytest.mark.parametrize("module", ["agent.main", "launcher.main", "cli.run", "cli.pods"])
def test_what_runs_beside_ranks_needs_no_numpy(module):
    """It starts in half the time, and each worker's agent has 15 MiB less."""
    assert "numpy" not in in_a_new_process(f"import sys, ringtrain_job.{module}; print(*sys.modules)")


def test_a_function_with_its_modules_name_is_the_function():
    """Whichever of the two is loaded first."""
    program = "import ringtrain.checkpoint, ringtrain as rt; print(callable(rt.report), rt.elastic.__name__)"
    assert in_a_new_process(program) == ["True", "ringtrain.elastic"]


def test_grpc_is_told_not_to_handle_forks_before_it_is_loaded():
    """Its handlers abort a rank now and then. Whatever of ringtrain loads it, the package itself comes first."""
    use = "import os, sys, ringtrain; ringtrain.init"
    program = f"{use}; print('grpc' in sys.modules, os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    assert in_a_new_process(program) == ["False", "0"]


def test_agents_and_launchers_can_tell_grpc_so():
    """They say it before they load it: images without ringtrain get another `ringtrain/__init__.py`."""
    assert in_a_new_process("import sys, ringtrain_job.cli.pods; print('grpc' in sys.modules)") == ["False"]


def test_ringtrain_is_imported_quickly():
    """Held against numpy, so that it does not depend on the machine."""
    clock = "import time; now = time.process_time; began = now()"
    program = (
        f"{clock}; import numpy; numpys = now() - began; "
        "import ringtrain; ringtrain.init; print((now() - began) / numpys - 1)"
    )
    assert any(float(in_a_new_process(program)[0]) < TIMES_NUMPY for _ in range(TRIES))


def test_keras_on_another_backend_is_refused_at_the_import():
    """With the module to take in its place."""
    env = {**os.environ, "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = completed([sys.executable, "-c", "import ringtrain.keras"], env=env)
    assert done.returncode == 1, done.stderr  # and not a signal: PyTorch's CUDA build does not bear TensorFlow
    assert done.stderr.splitlines()[-1].endswith(
        "ringtrain.keras works with Keras on TensorFlow, and KERAS_BACKEND is torch; for a PyTorch model use "
        "ringtrain.torch"
    )


@pytest.mark.parametrize(
    ("module", "framework"),
    [
        ("torch", "torch"),
        ("tensorflow", "tensorflow"),
        ("keras", "tensorflow"),
        ("tensorflow.keras", "tensorflow"),
    ],
)
def test_a_framework_that_is_not_installed_is_named(module: str, framework: str) -> None:
    """With the command that installs it."""
    program = f"import sys; sys.modules[{framework!r}] = None; import ringtrain.{module}"
    line = completed([sys.executable, "-c", program]).stderr.splitlines()[-1]
    expected = f"needs {framework}, which is not installed: pip install 'ringtrain[{framework}]', or from a clone"
    assert line.startswith(
        f"ModuleNotFoundError: ringtrain.{framework} {expected} pip install ./worker_image ./plugins/"
    )
