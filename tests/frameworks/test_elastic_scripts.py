"""Scripts in the shape of Horovod's elastic examples, with hosts that change under them."""

import contextlib
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from frameworks.warm_python import shared_python
from support.gang import DEADLINE_S, until

SCRIPTS = Path(__file__).with_name("elastic_scripts")


def ranks_of(run: "subprocess.Popen[bytes]", python: str) -> list[psutil.Process]:
    """Return the processes of `run` that run `python`."""
    found = []
    for process in psutil.Process(run.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[2] == python:
                found.append(process)
    return found


@pytest.mark.parametrize("script", ["torch_loop", "tensorflow_loop", "keras_fit"])
def test_a_script_goes_on_while_its_hosts_change(tmp_path: Path, script: str) -> None:
    """One rank, two, one of them killed and replaced, one again: each batch counts once, in living processes."""
    python = shared_python("torch" if script == "torch_loop" else "keras")
    hosts, end, output = tmp_path / "hosts", tmp_path / "end", tmp_path / "output"
    discovery = tmp_path / "discovery"
    discovery.write_text(f"#!/bin/sh\ncat {hosts}\n")
    discovery.chmod(0o755)
    hosts.write_text("localhost:1\n")
    words = ("--min-np", "1", "--max-np", "2", "--host-discovery-script", str(discovery), "--name", "elastic")
    with output.open("wb") as out:
        run = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ringtrain",
                "run",
                "-np",
                "1",
                *words,
                python,
                SCRIPTS / f"{script}.py",
                end,
            ],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def trains(size: int, since: int = 0) -> int:
        """Return the output offset, after `since`, of a batch in a world of `size`; 0 if no such batch is done."""
        assert run.poll() is None, output.read_text()
        found = re.compile(rf"batch \d+ of {size} ranks\n").search(output.read_text(), since)
        return found.end() if found else 0

    ranks = functools.partial(ranks_of, run, python)
    try:
        at = until("a world of one", lambda: trains(1), DEADLINE_S)
        (first,) = ranks()
        hosts.write_text("localhost:2\n")
        at = until("a world of two", lambda: trains(2, at), DEADLINE_S)
        (second,) = [rank for rank in ranks() if rank != first]
        second.kill()
        until("a newcomer", lambda: set(ranks()) - {first, second})
        at = len(output.read_text())  # the others wait for it: what comes now is of the next world
        at = until("a world of two again", lambda: trains(2, at), DEADLINE_S)
        hosts.write_text("localhost:1\n")
        until("a world of one again", lambda: trains(1, at), DEADLINE_S)
        until("the end of the other one", lambda: ranks() == [first])
        end.touch()
        assert run.wait(DEADLINE_S) == 0, output.read_text()
    finally:
        run.terminate()
        run.wait(DEADLINE_S)
    (batches, weight) = re.findall(r"(\d+) batches, weight (\S+)\n", output.read_text())[0]
    assert int(weight) == -int(batches), output.read_text()
