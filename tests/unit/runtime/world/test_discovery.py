"""Discovery of the world from the environment, and the errors for a wrong one."""

import json
from pathlib import Path

import pytest

from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError

WORKERS = ["a:1", "a:2", "b:1"]


def tf_config(kind: str | None = "worker", index: object = 0, **cluster: list[str]) -> dict[str, str]:
    task = {} if kind is None else {"task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps({"cluster": cluster} | task)}


def ring(rank: int, *addresses: str, **more: object) -> dict[str, str]:
    env = {"RANK": rank, "SIZE": len(addresses), "RING_ADDRESSES": ",".join(addresses)} | more
    return {f"RINGTRAIN_{name}": str(value) for name, value in env.items()}


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}

# Environment; then source, role, rank, size, (local rank, local size, cross rank, cross size).
FOUND = {
    "nothing": ({}, "single", "worker", 0, 1, (0, 1, 0, 1)),
    "ringtrain": (ring(2, *WORKERS), "ringtrain", "worker", 2, 3, (0, 1, 1, 2)),
    "ringtrain-local": (ring(1, *WORKERS), "ringtrain", "worker", 1, 3, (1, 2, 0, 1)),
    "ringtrain-says-more": (
        ring(1, *WORKERS, LOCAL_RANK=0, LOCAL_SIZE=1, CROSS_RANK=1, CROSS_SIZE=3),
        "ringtrain",
        "worker",
        1,
        3,
        (0, 1, 1, 3),
    ),
    "ringtrain-alone": ({"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "1"}, "ringtrain", "worker", 0, 1, (0, 1, 0, 1)),
    "ringtrain-before-tf": (ring(0, "c:1") | tf_config(worker=WORKERS), "ringtrain", "worker", 0, 1, (0, 1, 0, 1)),
    "tf-worker": (tf_config(index=2, worker=WORKERS), "tf_config", "worker", 2, 3, (0, 1, 1, 2)),
    "tf-index-as-text": (tf_config(index="1", worker=WORKERS), "tf_config", "worker", 1, 3, (1, 2, 0, 1)),
    "tf-chief-is-first": (
        tf_config("chief", chief=["c:1"], worker=WORKERS),
        "tf_config",
        "chief",
        0,
        4,
        (0, 1, 0, 3),
    ),
    "tf-worker-after-chief": (
        tf_config("worker", 0, chief=["c:1"], worker=WORKERS),
        "tf_config",
        "worker",
        1,
        4,
        (0, 2, 1, 3),
    ),
    "tf-evaluator": (
        tf_config("evaluator", worker=WORKERS, evaluator=["e:1"]),
        "tf_config",
        "evaluator",
        0,
        1,
        (0, 1, 0, 1),
    ),
    "tf-evaluator-not-in-cluster": (
        tf_config("evaluator", worker=WORKERS),
        "tf_config",
        "evaluator",
        0,
        1,
        (0, 1, 0, 1),
    ),
    "tf-empty": ({"TF_CONFIG": "{}"}, "single", "worker", 0, 1, (0, 1, 0, 1)),
    "tf-blank": ({"TF_CONFIG": " "}, "single", "worker", 0, 1, (0, 1, 0, 1)),
    "tf-before-mpi": (tf_config(worker=["a:1"]) | OPEN_MPI, "tf_config", "worker", 0, 1, (0, 1, 0, 1)),
    "open-mpi": (OPEN_MPI | {"RINGTRAIN_RING_ADDRESSES": "a:1,a:2"}, "mpi", "worker", 1, 2, (1, 2, 0, 1)),
    "mpich": (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "RINGTRAIN_RING_ADDRESSES": "a:1,b:2"},
        "mpi",
        "worker",
        0,
        2,
        (0, 1, 0, 2),
    ),
    "prrte": (
        {"PMIX_RANK": "1", "PMIX_SIZE": "2", "RINGTRAIN_RING_ADDRESSES": "a:1,b:2"},
        "mpi",
        "worker",
        1,
        2,
        (0, 1, 1, 2),
    ),
    "mpi-alone": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "mpi", "worker", 0, 1, (0, 1, 0, 1)),
    "address-v6": (ring(0, "[::1]:1", "[::1]:2"), "ringtrain", "worker", 0, 2, (0, 2, 0, 1)),
}


@pytest.mark.parametrize(("env", "source", "role", "rank", "size", "topology"), FOUND.values(), ids=FOUND)
def test_the_world_is_found(
    env: dict[str, str], source: str, role: str, rank: int, size: int, topology: tuple[int, ...]
) -> None:
    """RINGTRAIN_*, then TF_CONFIG, then MPI, else alone; local and cross ranks come from hosts unless given."""
    found = WorkerConfig.from_env(env)
    assert (found.source, found.role, found.place.rank, found.place.size) == (source, role, rank, size)
    place = found.place
    assert (place.local_rank, place.local_size, place.cross_rank, place.cross_size) == topology


REFUSED = {
    "rank-alone": (
        {"RINGTRAIN_RANK": "0"},
        "RINGTRAIN_SIZE is not set; set both RINGTRAIN_RANK and RINGTRAIN_SIZE",
    ),
    "rank-text": (ring(0, "a:1") | {"RINGTRAIN_RANK": "one"}, "RINGTRAIN_RANK='one': expected an integer"),
    "rank-out-of-range": (ring(3, *WORKERS), "RINGTRAIN_RANK='3': expected an integer from 0 to 2"),
    "no-addresses": (
        {"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "2"},
        "neither RINGTRAIN_RING_ADDRESSES nor RINGTRAIN_WORLD_FILE is set; expected host:port of each of 2 ranks",
    ),
    "too-few-addresses": (
        ring(0, "a:1") | {"RINGTRAIN_SIZE": "2"},
        "RINGTRAIN_RING_ADDRESSES has 1 address; expected 2, one for each rank",
    ),
    "no-port": (
        ring(0, "a:1", "b"),
        'RINGTRAIN_RING_ADDRESSES, rank 1: "b" is not an address of the form host:port',
    ),
    "port-too-high": (
        ring(0, "a:70000"),
        '"a:70000" is not an address of the form host:port with a port up to 65535',
    ),
    "address-twice": (ring(0, "a:1", "a:1"), "RINGTRAIN_RING_ADDRESSES has a:1 for ranks 0 and 1; give each rank"),
    "data-path": (
        ring(0, "a:1") | {"RINGTRAIN_DATA_PATH": "tcp"},
        "RINGTRAIN_DATA_PATH='tcp': expected one of auto, grpcio",
    ),
    "timeout": ({"RINGTRAIN_TIMEOUT": "0"}, "RINGTRAIN_TIMEOUT='0': expected seconds above 0"),
    "local-rank": (ring(0, "a:1", LOCAL_RANK=1), "RINGTRAIN_LOCAL_RANK='1': expected an integer from 0 to 0"),
    "tf-not-json": (
        {"TF_CONFIG": '{"cluster": x}'},
        "TF_CONFIG is not JSON: Expecting value at line 1 column 13, near",
    ),
    "tf-list": ({"TF_CONFIG": "[]"}, "TF_CONFIG: TF_CONFIG is []; expected an object in braces"),
    "tf-no-task": (tf_config(None, worker=WORKERS), "TF_CONFIG has a cluster but no task; expected"),
    "tf-index-out-of-range": (
        tf_config("worker", 3, worker=WORKERS),
        "TF_CONFIG: task index 3 is out of range; the cluster has 3 of type worker, 0 to 2",
    ),
    "tf-index-negative": (tf_config("worker", -1, worker=WORKERS), "TF_CONFIG: task index -1 is out of range"),
    "tf-index-text": (
        tf_config("worker", "x", worker=WORKERS),
        "TF_CONFIG: task index is 'x'; expected an integer",
    ),
    "tf-parameter-server": (
        tf_config("ps", ps=["p:1"], worker=WORKERS),
        "TF_CONFIG: this process is the parameter server ps 0, which is not needed",
    ),
    "tf-unknown-task": (
        tf_config("master", worker=WORKERS),
        "TF_CONFIG: task type is 'master'; expected chief, worker, ps or evaluator",
    ),
    "tf-unknown-type-in-cluster": (
        tf_config(worker=["a:1"], helper=["b:1"]),
        'TF_CONFIG: the cluster has a task type "helper"; expected chief, worker, ps or evaluator',
    ),
    "tf-type-not-in-cluster": (
        tf_config("chief", worker=WORKERS),
        'TF_CONFIG: the task is of type "chief", but the cluster has 3 worker',
    ),
    "tf-address": (tf_config(worker=["a:1", "b"]), 'TF_CONFIG: cluster.worker[1]: "b" is not an address'),
    "tf-addresses": (
        {"TF_CONFIG": '{"cluster": {"worker": "a:1"}, "task": {"type": "worker"}}'},
        "TF_CONFIG: cluster.worker is 'a:1'; expected a list of \"host:port\"",
    ),
    "tf-address-twice": (tf_config(worker=["a:1", "a:1"]), "TF_CONFIG: a:1 is the address of ranks 0 and 1"),
    "tf-two-chiefs": (tf_config(chief=["a:1", "b:1"], worker=["c:1"]), "TF_CONFIG: the cluster has 2 chiefs"),
    "mpi-without-size": (
        {"PMIX_RANK": "0"},
        "PRRTE set PMIX_RANK=0 but not PMIX_SIZE, so the size of the world is unknown",
    ),
    "mpi-out-of-range": ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK='2': expected an integer from 0 to 1"),
    "mpi-on-another-worker": (
        OPEN_MPI | {"RINGTRAIN_MPI_CHECK_IN": "/no/check-in"},
        "mpirun has started rank 1 on another worker than the job assigns to it",
    ),
    "mpi-text": ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK='x': expected an integer"),
}


@pytest.mark.parametrize(("env", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_environment_is_refused(env: dict[str, str], expected: str) -> None:
    """The message names the variable, what it is and what was expected."""
    with pytest.raises(ConfigurationError) as caught:
        WorkerConfig.from_env(env)
    assert expected in str(caught.value)


def test_the_rest_of_the_environment_is_read() -> None:
    """Job, attempt and generation; the generation is the attempt unless it is given."""
    env = {
        "RINGTRAIN_ATTEMPT": "3",
        "RINGTRAIN_TIMEOUT": "12.5",
        "RINGTRAIN_JOB_NAME": "digits",
        "RINGTRAIN_JOB_NAMESPACE": "default",
    }
    found = WorkerConfig.from_env(env)
    assert (found.numbers.attempt, found.numbers.generation, found.waits.timeout_s) == (3, 3, 12.5)
    assert found.trust.token() is None
    assert WorkerConfig.from_env(env | {"RINGTRAIN_GENERATION": "8"}).numbers.generation == 8


def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    """White space around it does not count; an empty or missing file is an error that names the variable."""
    path = tmp_path / "token"
    config = WorkerConfig.from_env({"RINGTRAIN_TOKEN_FILE": str(path)})
    with pytest.raises(ConfigurationError, match=r"RINGTRAIN_TOKEN_FILE is .*token: No such file or directory"):
        config.trust.token()
    path.write_text(" \n")
    with pytest.raises(ConfigurationError, match=r"RINGTRAIN_TOKEN_FILE is .*token: the file is empty"):
        config.trust.token()
    path.write_text("secret\n")
    assert config.trust.token() == b"secret"
