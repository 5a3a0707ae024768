"""The images at work with a read-only root, no capabilities and a user that is not root."""

import pytest
from support.image_names import name_of
from support.images import USER, Engine

WORKER, OPERATOR = name_of("worker"), name_of("operator")
# What a training pod has that is writable: /tmp by its template, /dev/shm from the operator.
WRITABLE = ("--tmpfs=/tmp:rw,mode=1777", "--shm-size=256m")
USERS = [pytest.param(USER, id="its-own-user"), pytest.param("123456:0", id="any-user")]


def test_the_root_is_read_only(engine: Engine) -> None:
    """Only the requested paths are writable. The other tests rely on this."""
    script = "touch /opt/x; touch /checkpoints/x; touch /tmp/x && echo written; id -u"
    done = engine.run(WORKER, *WRITABLE, argv=["sh", "-c", script])
    assert done.stdout.count("Read-only file system") == 2, done.stdout
    assert done.stdout.split()[-2:] == ["written", USER.split(":")[0]]


def test_the_worker_has_its_parts(engine: Engine) -> None:
    """Compiled kernels, gRPC, mpi4py on the image's MPI library, both commands."""
    script = (
        "import grpc, shutil\n"
        "from mpi4py import MPI\n"
        "from ringtrain._core.kernels.library import native_library\n"
        "assert native_library() is not None\n"
        "print(MPI.Get_library_version(), shutil.which('mpirun'), shutil.which('ringtrain'))"
    )
    done = engine.run(WORKER, *WRITABLE, argv=["python", "-c", script])
    assert done.returncode == 0, done.stdout
    assert "Open MPI" in done.stdout
    assert "/usr/bin/mpirun /opt/venv/bin/ringtrain" in done.stdout


@pytest.mark.parametrize("user", USERS)
def test_launcher_agent_and_ranks_train(engine: Engine, user: str) -> None:
    """`ringtrain run` in the image trains the digits example with two ranks."""
    argv = ["ringtrain", "run", "-np", "2", "--log-dir", "/tmp/runs", "python", "examples/digits/train.py"]
    done = engine.run(WORKER, *WRITABLE, argv=[*argv, "--epochs", "3"], user=user)
    assert done.returncode == 0, done.stdout
    assert "[0] test accuracy: 0.9" in done.stdout


@pytest.mark.parametrize("user", USERS)
def test_mpirun_runs_a_program_in_c(engine: Engine, user: str) -> None:
    """The image's mpirun starts the pi that the build stage compiled."""
    argv = ["mpirun", "-np", "2", "--oversubscribe", "examples/mpi/pi", "100000"]
    done = engine.run(WORKER, *WRITABLE, argv=argv, user=user)
    assert done.returncode == 0, done.stdout
    assert "3.1" in done.stdout


def test_the_operator_tells_its_options(engine: Engine) -> None:
    """Without a writable place of any kind."""
    done = engine.run(OPERATOR, argv=["--help"])
    assert done.returncode == 0, done.stdout
    assert "--leader-election" in done.stdout


def test_the_operator_without_a_cluster_says_what_is_missing(engine: Engine) -> None:
    """It ends at once, with one line that a person can act on and no stack trace."""
    done = engine.run(OPERATOR)
    assert done.returncode not in (0, None)
    assert "kubeconfig" in done.stdout.lower()
    assert "Traceback" not in done.stdout
