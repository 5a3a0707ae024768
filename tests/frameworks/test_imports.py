"""Modules that `import ringtrain` loads, and the time that it takes."""

import os
import sys

from frameworks.warm_python import shared_python
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


def test_what_runs_beside_ranks_needs_no_numpy():
    """It starts in half the time, and each worker's agent has 15 MiB less."""
    modules = ["ringtrain_job.agent.main", "ringtrain_job.launcher.main", "ringtrain_job.cli.run"]
    modules.append("ringtrain_job.cli.pods")
    loaded = in_a_new_process(f"import sys, {', '.join(modules)}; print(*sys.modules)")
    assert set(modules) <= set(loaded)
    assert "numpy" not in loaded


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
    """With the module to take in its place. This `python` has imported torch, as Keras does for that backend."""
    env = {**os.environ, "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = completed([shared_python("torch"), "-c", "import ringtrain.keras"], env=env)
    assert done.returncode == 1, done.stderr  # and not a signal: PyTorch's CUDA build does not bear TensorFlow
    assert done.stderr.splitlines()[-1].endswith(
        "ringtrain.keras works with Keras on TensorFlow, and KERAS_BACKEND is torch; for a PyTorch model use "
        "ringtrain.torch"
    )


WITHOUT_FRAMEWORKS = """
import importlib, sys
sys.modules.update(torch=None, tensorflow=None)
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(error)
    else:
        print(f"{module} was imported")
"""


def test_a_framework_that_is_not_installed_is_named() -> None:
    """With the command that installs it."""
    needs = {
        "ringtrain.torch": "torch",
        "ringtrain.tensorflow": "tensorflow",
        "ringtrain.keras": "tensorflow",
        "ringtrain.tensorflow.keras": "tensorflow",
    }
    errors = completed([sys.executable, "-c", WITHOUT_FRAMEWORKS, *needs], check=True).stdout.splitlines()
    for (module, framework), error in zip(needs.items(), errors, strict=True):
        expected = f"needs {framework}, which is not installed: pip install 'ringtrain[{framework}]', or from a clone"
        assert error.startswith(f"ringtrain.{framework} {expected} pip install ./worker_image ./plugins/"), module
