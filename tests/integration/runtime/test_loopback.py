"""`ringtrain run` on machines whose loopback is unusual, each a network namespace."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import completed
from support.gang import DEADLINE_S

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
PROGRAM = """
import numpy as np, ringtrain as rt
rt.init()
rt.allreduce(np.ones(4), name="g")
print("rank", rt.rank(), "of", rt.size())
"""
ONLY_IPV6 = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo"
ONLY_IPV4 = "ip link set lo up && ip address delete ::1/128 dev lo"


def _run_there(folder: Path, setup: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run two ranks in a network of their own, after the shell command `setup`."""
    words = [sys.executable, "-m", "ringtrain", "run", "-np", "2", *options, sys.executable, "train.py"]
    return _there(folder, setup, *words)


def _there(folder: Path, setup: str, *words: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("ip") is None or completed(["unshare", "-n", "true"], cwd=folder).returncode:
        pytest.skip("needs iproute2, and the right to make network namespaces")
    (folder / "train.py").write_text(PROGRAM)
    run = f'{setup} && exec "$@"'
    return completed(["unshare", "-n", "sh", "-c", run, "sh", *words], cwd=folder, timeout=DEADLINE_S)


@pytest.mark.parametrize("setup", [ONLY_IPV6, ONLY_IPV4], ids=["only-ipv6", "only-ipv4"])
@pytest.mark.parametrize("options", [(), ("--min-np", "1")], ids=["ring", "elastic"])
def test_one_family_is_enough(setup: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The launcher listens, and ranks meet, at the address that there is; the page's link has it."""
    done = _run_there(tmp_path, setup, "--ui", *options)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert f"page: http://{'[::1]' if setup == ONLY_IPV6 else '127.0.0.1'}:" in done.stderr


def test_a_loopback_that_is_down(tmp_path: Path) -> None:
    """The run ends at once with one line, and leaves no folder."""
    done = _run_there(tmp_path, "true")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert "neither 127.0.0.1 nor ::1 answers; start the loopback interface as root: ip link set lo up" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_local_job_needs_ipv4s_loopback(tmp_path: Path) -> None:
    """It ends at once with one line, and leaves no folder."""
    for setup in ("true", ONLY_IPV6):
        words = [sys.executable, "-m", "ringtrain_client.cli", "local", str(SAMPLES / "digits-ring.yaml")]
        done = _there(tmp_path, setup, *words)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
        assert re.search(r"cannot reach each other at 127.0.0.1 \([\w ]+\); start the loopback", done.stderr)
        assert "ip link set lo up" in done.stderr
        assert not (tmp_path / "runs").exists()
