"""`ringtrain.init()` in the tasks that srun starts, on a real SLURM of two nodes."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import Cluster, cluster, why_not

from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.slurm import slurm_rank
from ringtrain.errors import ConfigurationError
from ringtrain.shared.slurm import node_names, tasks_of_nodes

SUM = """
import os, socket
import numpy as np
import ringtrain as rt
from ringtrain.runner.common.util.env import get_env_rank_and_size
for _ in range(2):
    rt.init()
    total = rt.allreduce(np.full(1000, rt.rank() + 1.0), rt.Sum).max()
    place = [rt.rank(), rt.size(), rt.local_rank(), rt.local_size(), rt.cross_rank(), rt.cross_size()]
    assert get_env_rank_and_size() == (rt.rank(), rt.size())
    os.write(1, f"{socket.gethostname()[-1]} {place} sum {total}\\n".encode())
    rt.shutdown()
"""
IN_A_BATCH = """#!/bin/sh
export RINGTRAIN_TOKEN=$(openssl rand -hex 16)
echo batch "$(python3 -c 'import ringtrain as rt; rt.init(); print(rt.size())')"
srun -l python3 {script}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), 2) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "sum.py").write_text(SUM)
    return str(tmp_path / "sum.py")


def _lines(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


PLACES = {
    "one-node": (
        ["-N1", "-n2"],
        ["0 [0, 2, 0, 2, 0, 1] sum 3.0", "0 [1, 2, 1, 2, 0, 1] sum 3.0"],
    ),
    "two-nodes": (
        ["-N2", "-n4", "--ntasks-per-node=2"],
        [
            "0 [0, 4, 0, 2, 0, 2] sum 10.0",
            "0 [1, 4, 1, 2, 0, 2] sum 10.0",
            "1 [2, 4, 0, 2, 1, 2] sum 10.0",
            "1 [3, 4, 1, 2, 1, 2] sum 10.0",
        ],
    ),
    "in-turns": (
        ["-N2", "-n4", "--ntasks-per-node=2", "--distribution=cyclic"],
        [
            "0 [0, 4, 0, 2, 0, 2] sum 10.0",
            "0 [2, 4, 1, 2, 0, 2] sum 10.0",
            "1 [1, 4, 0, 2, 1, 2] sum 10.0",
            "1 [3, 4, 1, 2, 1, 2] sum 10.0",
        ],
    ),
    "unequal": (
        ["-N2", "-n3"],
        [
            "0 [0, 3, 0, 2, 0, 2] sum 6.0",
            "0 [1, 3, 1, 2, 0, 1] sum 6.0",
            "1 [2, 3, 0, 1, 1, 2] sum 6.0",
        ],
    ),
}


@pytest.mark.parametrize(("options", "expected"), PLACES.values(), ids=PLACES)
def test_the_tasks_of_a_step_meet(slurm: Cluster, script: str, options: list[str], expected: list[str]) -> None:
    """`srun python train.py`, however SLURM deals the tasks out, and the script may enter a second world."""
    assert _lines(slurm.run("srun", *options, "python3", script)) == sorted(2 * expected)


@pytest.mark.parametrize("mpi", ["pmi2", "pmix"])
def test_tasks_that_get_the_variables_of_an_mpi_meet(slurm: Cluster, script: str, mpi: str) -> None:
    """Clusters set MpiDefault for programs that use MPI; a program without it needs no MPI library then."""
    done = slurm.run("srun", f"--mpi={mpi}", "-N2", "-n2", "python3", script)
    assert _lines(done) == sorted(2 * ["0 [0, 2, 0, 1, 0, 2] sum 3.0", "1 [1, 2, 0, 1, 1, 2] sum 3.0"])


def test_two_steps_of_a_batch_job_are_two_worlds(slurm: Cluster, script: str, tmp_path: Path) -> None:
    """The script of `sbatch` itself is no task, though SLURM_PROCID is 0 and SLURM_NTASKS is 2 there."""
    batch = tmp_path / "job.sh"
    batch.write_text(IN_A_BATCH.format(script=script) + f"srun -n1 -N1 python3 {script}\n")
    # srun says on stderr when it has to wait for the end of the step before.
    streams = ["-o", str(tmp_path / "out"), "-e", str(tmp_path / "err")]
    done = slurm.run("sbatch", "-W", "-N2", "-n2", *streams, str(batch))
    assert done.returncode == 0, (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        *2 * ["0 [0, 1, 0, 1, 0, 1] sum 1.0"],
        *2 * ["0: 0 [0, 2, 0, 1, 0, 2] sum 3.0"],
        *2 * ["1: 1 [1, 2, 0, 1, 1, 2] sum 3.0"],
        "batch 1",
    ]


def test_ranks_that_a_task_starts_are_not_tasks(slurm: Cluster, script: str) -> None:
    """`srun ringtrain run -np 2`: the inner launcher's word counts."""
    inner = [
        "ringtrain",
        "run",
        "-q",
        "-np",
        "2",
        "--log-dir",
        str(Path(script).parent / "runs"),
        "python3",
        script,
    ]
    lines = _lines(slurm.run("srun", "-N1", "-n1", *inner))
    assert lines == [f"[{rank}] 0 [{rank}, 2, {rank}, 2, 0, 1] sum 3.0" for rank in (0, 0, 1, 1)]


def test_a_run_in_a_jobs_script_is_on_the_jobs_nodes(slurm: Cluster, script: str, tmp_path: Path) -> None:
    """`sbatch` with `ringtrain run` and no -np: as many ranks as tasks, by srun, with one merged log."""
    pytest.importorskip("ringtrain_hosts", reason="the plugin hosts is not installed")
    batch = tmp_path / "job.sh"
    run = f"ringtrain run -q --log-dir {tmp_path}/runs"
    batch.write_text(f"#!/bin/sh\n{run} python3 {script}\n{run} -np 2 python3 {script}\n{run} -np 8 python3 {script}\n")
    out = tmp_path / "out"
    options = ["-N2", "-n4", "--ntasks-per-node=2", "-D", str(tmp_path), "-o", str(out)]
    done = slurm.run("sbatch", "-W", *options, str(batch), SSH_CONNECTION="192.0.2.1 50000 192.0.2.2 22")
    lines = out.read_text().splitlines()
    assert sorted(line for line in lines if "sum" in line) == sorted(
        2 * [f"[{rank}] 0 [{rank}, 2, {rank}, 2, 0, 1] sum 3.0" for rank in range(2)]
        + 2 * [f"[{rank}] {rank // 2} [{rank}, 4, {rank % 2}, 2, {rank // 2}, 2] sum 10.0" for rank in range(4)]
    ), lines
    assert done.returncode == 2
    nodes = ",".join(f"{node.name}:2" for node in slurm.nodes)
    assert f"SLURM's job has {nodes}: the hosts have 4 slots, but -np is 8; " in " ".join(lines)
    assert f"such as {slurm.nodes[0].name}:8" in " ".join(lines)


def test_a_run_that_srun_starts_twice_says_so(slurm: Cluster, tmp_path: Path) -> None:
    """Two runs instead of one are what a sweep wants, and what nobody else does."""
    pytest.importorskip("ringtrain_hosts", reason="the plugin hosts is not installed")
    run = ["ringtrain", "run", "-np", "1", "--log-dir", str(tmp_path / "runs"), "true"]
    done = slurm.run("srun", "-n2", "-N1", *run)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("srun has started this command 2 times, each as a separate run") == 2


def test_a_task_that_never_comes_is_named(slurm: Cluster) -> None:
    """Rank 0 says who is missing and how ranks are started, and srun ends with its failure."""
    late = "import os, ringtrain as rt\nif os.environ['SLURM_PROCID'] == '0': rt.init()"
    done = slurm.run("srun", "-N2", "-n2", "python3", "-c", late, RINGTRAIN_TIMEOUT="2")
    assert done.returncode != 0
    assert re.search(
        r"rank\(s\) 1 of 2 did not call ringtrain.init\(\) within 2 s .*; start one task for each rank",
        done.stderr,
    )


def test_short_forms_are_read_as_scontrol_reads_them(slurm: Cluster) -> None:
    """Lists of nodes, held against SLURM's own expansion."""
    for text in ("a", "a,b", "gpu[01-03,7],login", "n[8-11]", "r[1-2]n[00-02]", "a[1],b[2,4-5]"):
        expected = slurm.run("scontrol", "show", "hostnames", text).stdout.split()
        assert node_names("LIST", {"LIST": text}) == expected, text


def test_tasks_of_nodes() -> None:
    """The short form of counts."""
    assert tasks_of_nodes("T", {"T": "2(x3),1"}) == [2, 2, 2, 1]
    for text in ("", "2(x", "a", "1,,2"):
        with pytest.raises(ConfigurationError, match=re.escape(f'T is "{text}";')):
            tasks_of_nodes("T", {"T": text})


TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "a[0-1]",
}
WRONG = {
    "SLURM_PROCID": ("2", "SLURM_PROCID='2': expected an integer from 0 to 1"),
    "SLURM_STEP_NUM_TASKS": ("x", "SLURM_STEP_NUM_TASKS='x'"),
    "SLURM_STEP_NODELIST": ("a[x]", 'SLURM_STEP_NODELIST is "a[x]", where "x" is not a range of numbers'),
    "MASTER_PORT": ("0", "MASTER_PORT='0'"),
}


@pytest.mark.parametrize(("name", "value", "expected"), [(name, *rest) for name, rest in WRONG.items()], ids=WRONG)
def test_a_wrong_environment_is_refused(name: str, value: str, expected: str) -> None:
    """The message names the variable, what it is and what was expected."""
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        WorkerConfig.from_env(TASK | {name: value})


def test_a_node_without_a_name_is_said() -> None:
    """If the first node's name does not resolve, the error has the variable and the way out."""
    with pytest.raises(ConfigurationError, match=r"first node of SLURM_STEP_NODELIST.*RINGTRAIN_RING_ADDRESSES"):
        WorkerConfig.from_env(TASK | {"SLURM_STEP_NODELIST": "no-such-node.invalid,b"})


OTHERS = {
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
    "hydra": {"PMI_RANK": "1", "PMI_SIZE": "4"},
    "prrte": {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-a-1@1"},
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4"},
}


@pytest.mark.parametrize("more", OTHERS.values(), ids=OTHERS)
def test_a_launchers_daemon_is_no_rank(more: dict[str, str]) -> None:
    """mpirun starts its daemons with srun; what those start has srun's variables, and its own."""
    assert slurm_rank(TASK | more) is None
    assert slurm_rank(TASK) is not None
