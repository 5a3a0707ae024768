"""`ringtrain.run` gives the results of rank processes in rank order, or the error of the first that failed."""

import inspect
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import completed
from support.gang import DEADLINE_S, until

import ringtrain as rt
from ring import functions
from ringtrain import horovod_run
from ringtrain.errors import ConfigurationError, RankFailed
from ringtrain.shared.processes import marked_processes


def test_results_come_in_rank_order() -> None:
    """Ranks are a world of their own, on this machine."""
    results = rt.run(functions.summed, (2.0,), {"offset": 1.0}, np=3)
    assert [(r["rank"], r["size"], r["local"]) for r in results] == [(rank, 3, rank) for rank in range(3)]
    for result in results:
        assert np.array_equal(result["total"], np.full(3, 13.0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_rank_is_named_with_its_traceback(rank: int) -> None:
    """The others only lost a peer, and are not the ones that are named."""
    with pytest.raises(RankFailed) as caught:
        rt.run(functions.fails_on, (rank,), num_proc=2)
    assert caught.value.rank == rank
    assert f"run: rank {rank} failed with KeyError: 'no such layer'" in str(caught.value)
    assert 'raise KeyError("no such layer")' in str(caught.value)


def test_a_killed_rank_is_named() -> None:
    """It can tell nothing, and its exit code is told."""
    with pytest.raises(RankFailed, match="rank 1 ended with exit code -9") as caught:
        rt.run(functions.killed_on, (1,), np=2)
    assert caught.value.rank == 1


def test_ranks_that_do_not_end_are_ended(tmp_path: Path) -> None:
    """No process is left after the time that the caller allows."""
    pids = tmp_path / "pids"
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] did not end within 5 s"):
        rt.run(functions.hangs, (str(pids),), np=2, timeout_s=5.0)
    for pid in pids.read_text().split() if pids.exists() else []:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_function_of_a_notebook_needs_cloudpickle(tmp_path: Path) -> None:
    """A cell has no file that ranks could import: one line says so, and no rank starts."""
    cell = "import ringtrain, importlib.util as u; f = u.find_spec; "
    cell += "u.find_spec = lambda name, *a: None if name == 'cloudpickle' else f(name, *a)\n"
    cell += "import sys; sys.modules['cloudpickle'] = None\ndef train(): pass\nringtrain.run(train, np=2)"
    done = completed([sys.executable, "-c", cell], cwd=tmp_path)
    assert done.returncode == 1
    assert "ConfigurationError: run: train is defined in a notebook or an interactive session" in done.stderr


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    """The error says what to return instead."""
    with pytest.raises(RankFailed, match=r"rank 0 failed with .* run: the result can't be pickled"):
        rt.run(functions.gives_what_cannot_be_pickled)


def test_variables_of_ranks() -> None:
    """They are on top of those of this process."""
    assert rt.run(functions.variable, ("RINGTRAIN_TIMEOUT",), np=1, env={"RINGTRAIN_TIMEOUT": "7"}) == ["7"]


# As https://github.com/horovod/horovod has them at 0.28.1, horovod/runner/__init__.py.
OF_HOROVOD = """
func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile start_timeout
ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo use_mpi mpi_args network_interface
executable np min_np max_np
"""


def test_arguments_are_those_of_horovod_at_their_places() -> None:
    """Ours come after them, by name alone."""
    parameters = inspect.signature(rt.run).parameters
    assert [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == OF_HOROVOD.split()


def test_arguments_without_meaning_are_said_to_have_none(caplog: pytest.LogCaptureFixture) -> None:
    """Each in one line with its reason, and the function runs."""
    given: dict[str, Any] = dict.fromkeys(horovod_run.IGNORED_ARGUMENTS, 1)
    assert rt.run(functions.variable, ("HOROVOD_SIZE",), **given) == ["1"]
    said = re.findall(r"run: the argument (\w+) is ignored: (.+)", caplog.text)
    assert dict(said) == horovod_run.IGNORED_ARGUMENTS
    assert len(said) == len(given)


def test_arguments_that_mean_something(tmp_path: Path) -> None:
    """Hosts of this machine, a Python, an output directory, more messages, and a time to start in."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    found = rt.run(
        functions.prints_and_tells,
        num_proc=2,
        hosts="localhost:2",
        output_filename=str(tmp_path / "out"),
        executable=str(link),
        verbose=2,
        start_timeout=100,
    )
    assert found == [(str(link), "info", "100")] * 2
    assert [(tmp_path / f"out/rank.{rank}/stdout").read_text() for rank in range(2)] == ["rank 0\n", "rank 1\n"]
    assert (tmp_path / "out/rank.1/stderr").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": "elsewhere:2"}, "elsewhere is another machine, but run"),
        ({"hosts": "localhost:2", "num_proc": 3}, "np=3, but the hosts have only 2 slots"),
        ({"hosts": "localhost:many"}, "run: hosts localhost:many: 'many' is not a number of slots"),
        ({"hosts": "localhost:2", "hostfile": "x"}, "pass one of them"),
        ({"hostfile": "/absent"}, "hostfile /absent: No such file"),
    ],
)
def test_hosts_that_run_cannot_use(given: dict[str, Any], message: str) -> None:
    """The error says why, before anything is started."""
    with pytest.raises(ConfigurationError, match=message):
        rt.run(functions.summed, (1.0,), **given)


@pytest.mark.parametrize("name", ["localhost:2", "[::1]:2", "machine:2", "machine.example:1,machine:1"])
def test_hosts_that_are_this_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that `ringtrain run -H` knows, too: also without its domain."""
    monkeypatch.setattr("socket.gethostname", lambda: "machine.example")
    assert horovod_run.checked_rank_count(2, name, None) == 2


@pytest.mark.parametrize("np_", [0, -1, True, 2.0, "2", 100_000])
def test_a_number_of_ranks_that_makes_no_sense(np_: Any) -> None:
    """The error names the value and the bounds."""
    with pytest.raises(ConfigurationError, match="expected a number of ranks from 1 to 1024"):
        rt.run(functions.summed, (1.0,), np=np_)


LEAVES = """
import os, subprocess, sys, time
import ringtrain as rt

def work(stays):
    rt.init()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    open(f"begun-{rt.rank()}", "w").close()
    while stays:
        time.sleep(0.05)

if __name__ == "__main__":
    rt.run(work, args=(sys.argv[1:] == ["stays"],), np=2)
"""


@pytest.mark.parametrize("how", ["stays", "ends"])
def test_what_ranks_have_started_ends_with_them(how: str, tmp_path: Path) -> None:
    """Processes that ranks started end and the run's secret is deleted, also if the caller of run() is killed."""
    mark = str(uuid.uuid4())
    (tmp_path / "script.py").write_text(LEAVES)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "script.py", how], cwd=tmp_path, env=env)
    until("both ranks", lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    if how == "stays":
        process.kill()
    assert process.wait(DEADLINE_S) == (-signal.SIGKILL if how == "stays" else 0)
    until("the end of all processes", lambda: not marked_processes(mark, "MARK"))
    until("the end of the folder", lambda: not list((tmp_path / "tmp").glob("ringtrain-*")))
