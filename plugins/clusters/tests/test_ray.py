"""ringtrain.ray on real Ray: ranks are actors of a placement group, on one node and on two."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install -r requirements-frameworks.txt")

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
from support.gang import pid_runs, until

import ringtrain.ray
from ringtrain.errors import ConfigurationError, RankFailed
from ringtrain.ray import RayExecutor


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """Start a cluster with two nodes, each with two CPUs and two devices that no test uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        node = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 100 << 20}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        made.add_node(**node)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


def trains(step: str = "", rank: int = -1) -> Any:
    """A function that travels by value: ranks can't import the tests."""

    def train(factor: float, offset: float = 0.0) -> tuple[Any, ...]:
        import os
        import pathlib
        import signal
        import subprocess

        import numpy as np

        import ringtrain as rt

        rt.init()
        print(f"this is rank {rt.rank()} of {rt.size()}")
        if rank == rt.rank() and step == "raise":
            raise ValueError("no such file")
        if rank == rt.rank() and step == "kill the actor":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            pathlib.Path(os.environ["MINE"]).write_text(str(child.pid))
            agent = psutil.Process(os.getppid())
            os.kill(agent.ppid(), signal.SIGKILL)
        total = rt.allreduce(np.full(3, factor * (rt.rank() + 1) + offset), op=rt.Sum)
        local = f"{rt.local_rank()}/{rt.local_size()}"
        return rt.rank(), float(total[0]), os.environ.get("MINE", ""), os.environ["LOCAL_RANK"], local

    return train


def test_ranks_meet_and_their_results_come_in_order(tmp_path: Path) -> None:
    """Output of the ranks appears in `stdout` and in a log per rank. Ranks of both local nodes share the machine's
    memory, so their local ranks are 0 to 3."""
    out = io.StringIO()
    results = ringtrain.ray.run(
        *(trains(), (2.0,), {"offset": 1.0}),
        num_workers=4,
        workers_per_node=2,
        env={"MINE": "yes"},
        stdout=out,
        log_dir=tmp_path,
    )
    assert results == [(rank, 24.0, "yes", str(rank), f"{rank}/4") for rank in range(4)]
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}] this is rank {rank} of 4" for rank in range(4)]
    logs = sorted(tmp_path.glob("ray/*/1/rank-*.log"))
    assert [log.read_text() for log in logs] == [f"this is rank {rank} of 4\n" for rank in range(4)]


def test_ranks_see_the_devices_of_their_host(tmp_path: Path) -> None:
    """Ray shows each actor its own device alone; scripts pick theirs by local rank."""
    seen = ringtrain.ray.run(
        lambda: (os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]),
        num_workers=2,
        resources_per_worker={"GPU": 1},
        placement="STRICT_PACK",
        stdout=io.StringIO(),
        log_dir=tmp_path,
    )
    assert [local for local, _ in seen] == ["0", "1"]
    assert {frozenset(devices.split(",")) for _, devices in seen} == {frozenset("01")}


def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    """The error contains the end of the rank's output with the traceback, and the rank's place is free for the next
    run."""
    all_places: dict[str, Any] = {"num_workers": 2, "resources_per_worker": {"CPU": 2}}
    with pytest.raises(RankFailed, match="ValueError: no such file") as caught:
        ringtrain.ray.run(trains("raise", 1), (1.0,), **all_places, log_dir=tmp_path, stdout=io.StringIO())
    assert caught.value.rank == 1
    again = ringtrain.ray.run(trains(), (1.0,), **all_places, log_dir=tmp_path, stdout=io.StringIO())
    assert [result[1] for result in again] == [3.0] * 2


def test_an_actor_that_dies_is_named(tmp_path: Path) -> None:
    """The error names the rank whose process is killed; the other ranks end, and so do its child processes."""
    with pytest.raises(RankFailed, match="the Ray task of rank 1 ") as caught:
        ringtrain.ray.run(
            *(trains("kill the actor", 1), (1.0,)),
            num_workers=2,
            env={"MINE": str(tmp_path / "child")},
            log_dir=tmp_path,
            stdout=io.StringIO(),
        )
    assert caught.value.rank == 1
    child = int((tmp_path / "child").read_text())
    until("the child's end", lambda: not pid_runs(child))


def test_more_than_the_cluster_has() -> None:
    """The error contains the requested and the available resources; Ray would wait."""
    expected = r"Ray did not place 5 workers with {'CPU': 1} each within 0.5 s; Ray's nodes have .*'CPU': 4.* in total"
    with pytest.raises(ConfigurationError, match=expected):
        ringtrain.ray.run(trains(), num_workers=5, start_timeout=0.5)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"num_workers": 0}, "num_workers is 0"),
    "true": ({"num_workers": True}, "num_workers is True"),
    "uneven": ({"num_workers": 3, "workers_per_node": 2}, "num_workers=3; expected a multiple"),
    "both": ({"num_workers": 2, "workers_per_node": 2, "placement": "SPREAD"}, "omit one of them"),
    "placement": ({"num_workers": 2, "placement": "pack"}, "placement is 'pack'; expected PACK, SPREAD"),
    "resources": ({"num_workers": 2, "resources_per_worker": {"GPU": -1}}, "has GPU: -1; expected a number"),
}


@pytest.mark.parametrize(("keywords", "expected"), WRONG.values(), ids=WRONG)
def test_arguments_that_make_no_sense(keywords: dict[str, Any], expected: str) -> None:
    """Said before anything starts, with the value and what was expected."""
    with pytest.raises(ConfigurationError, match=expected):
        ringtrain.ray.run(trains(), **keywords)


def test_a_function_that_cannot_travel() -> None:
    """The error has the pickler's reason."""
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="can't be pickled"):
        ringtrain.ray.run(lambda: lock.locked(), num_workers=1)


def test_a_group_of_ones_own(tmp_path: Path) -> None:
    """The group's bundles are the places of the ranks, and the run does not remove it."""
    group = placement_group([{"CPU": 1}] * 2, strategy="SPREAD")
    for _ in range(2):
        results = ringtrain.ray.run(
            *(trains(), (1.0,)), num_workers=2, placement=group, stdout=io.StringIO(), log_dir=tmp_path
        )
        assert [result[1] for result in results] == [3.0, 3.0]
    for ranks in (1, 3):
        with pytest.raises(ConfigurationError, match=f"has 2 bundles; expected {ranks}"):
            ringtrain.ray.run(trains(), num_workers=ranks, placement=group)
    ray.util.remove_placement_group(group)


def test_horovods_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of Horovod's documentation runs with a changed import."""
    monkeypatch.chdir(tmp_path)
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_hosts=2, num_workers_per_host=2)
    executor.start(extra_env_vars={"MINE": "yes"})
    results = executor.run(trains(), args=[2.0], kwargs={"offset": 1.0})
    executor.shutdown()
    assert [result[:3] for result in results] == [(rank, 24.0, "yes") for rank in range(4)]


def test_what_horovods_executor_cannot_do() -> None:
    """Refused by name, with the way out."""
    with pytest.raises(ConfigurationError, match="min_workers needs elastic training"):
        RayExecutor(min_workers=1)
    with pytest.raises(ConfigurationError, match="pass either num_workers, or num_hosts"):
        RayExecutor()
    with pytest.raises(ConfigurationError, match="executable_cls is not supported"):
        RayExecutor(num_workers=1).start(executable_cls=dict)
    with pytest.raises(ConfigurationError, match="callbacks are not supported"):
        RayExecutor(num_workers=1).run(trains(), callbacks=[print])
    with pytest.raises(TypeError, match="no argument workers"):
        RayExecutor(num_workers=1, workers=2)
