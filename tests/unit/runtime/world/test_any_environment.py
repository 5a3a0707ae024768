"""For any environment, `init` finds a world or names the error in a ConfigurationError."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.mpi_environment import mpi_rank
from ringtrain._core.world.tf_config import parse_tf_config
from ringtrain._core.world.torchrun import torchrun_rank
from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import split_address

# A variable can hold any bytes but NUL; what is no UTF-8 arrives as surrogates.
WORDS = ["0", "1", "-1", "2", "x", "", " ", "1e400", "nan", "1e300", "٣", "1_0", "9" * 400, "9" * 5000, "x..y:1"]
ADDRESSES = ["a:1", "b:2", "[::1]:3", "x..y:1", "a" * 70 + ":1", "\udcff:1", "a:" + "9" * 5000, "a:1,b:2", "a\n:1"]
VALUES = st.sampled_from(WORDS + ADDRESSES) | st.text(st.characters(exclude_characters="\0"), max_size=40)
OURS = sorted(value for name, value in vars(contract).items() if name.startswith("ENV_") and isinstance(value, str))
TORCHRUN = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
MPI = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMIX_RANK"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(ADDRESSES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TASK_TYPES = st.sampled_from(["chief", "worker", "ps", "evaluator", "master"]) | JSON
LONGEST_MESSAGE = 2000


def read_or_refused(call: Any, *given: Any) -> None:
    """The call returns, or says what is wrong in a message that can be read and printed."""
    try:
        call(*given)
        message = ""
    except ConfigurationError as error:
        message = str(error)
    assert len(message) < LONGEST_MESSAGE


@given(st.dictionaries(st.sampled_from(OURS), VALUES))
@example({"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "2", "RINGTRAIN_RING_ADDRESSES": "x..y:1,b:1"})
@example({"RINGTRAIN_RANK": "9" * 5000, "RINGTRAIN_SIZE": "2"})
@example({"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "9" * 4000})
@example({"RINGTRAIN_GENERATION": "9" * 30})
@example({"RINGTRAIN_TIMEOUT": "1e300"})
def test_any_variables_of_ours(env: dict[str, str]) -> None:
    """The agent's variables, each with any value."""
    read_or_refused(WorkerConfig.from_env, env)


@given(st.text(max_size=200))
@example("[" * 100_000)
@example('{"cluster":' * 3000)
@example('{"cluster": ' + "[" * 900 + "]" * 900 + ', "task": {"type": "worker"}}')
@example('{"cluster": {"worker": ["x..y:1"]}, "task": {"type": "worker", "index": 0}}')
@example('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": ' + "9" * 5000 + "}}")
@example('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "' + "9" * 4000 + '"}}')
@example('{"cluster": {"worker": ["a:1"]}, "task": {"type": {"worker": 1}, "index": 0}}')
@example('{"cluster": {"worker": ["\\ud800:1"]}, "task": {"type": "worker"}}')
@example('{"cluster": {"worker": [1e999]}, "task": {"type": "worker", "index": 1e999}}')
def test_any_text_as_tf_config(text: str) -> None:
    """Nothing that is no TF_CONFIG gets further than the parser."""
    read_or_refused(parse_tf_config, text)


@given(
    st.dictionaries(TASK_TYPES.filter(lambda kind: isinstance(kind, str)), st.lists(st.sampled_from(ADDRESSES)) | JSON)
    | JSON,
    st.fixed_dictionaries({}, optional={"type": TASK_TYPES, "index": JSON}) | JSON,
)
def test_any_cluster_and_task(cluster: Any, task: Any) -> None:
    """Texts of the right form with any content."""
    read_or_refused(parse_tf_config, json.dumps({"cluster": cluster, "task": task}))


@given(st.dictionaries(st.sampled_from(TORCHRUN), VALUES))
@example({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x..y", "MASTER_PORT": "1"})
@example({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "9" * 5000})
def test_any_variables_of_torchrun(env: dict[str, str]) -> None:
    """torchrun's variables, each with any value."""
    read_or_refused(torchrun_rank, env)


@given(st.dictionaries(st.sampled_from(MPI), VALUES))
@example({"PMI_RANK": "9" * 5000, "PMI_SIZE": "2"})
def test_any_variables_of_mpi(env: dict[str, str]) -> None:
    """Those of MPI's launchers, each with any value."""
    read_or_refused(mpi_rank, env)


@given(VALUES | st.tuples(st.text(max_size=20), st.integers()).map(lambda pair: f"{pair[0]}:{pair[1]}"))
def test_any_address(text: str) -> None:
    """Every accepted address can be looked up: Python's resolver raises nothing but OSError for it."""
    try:
        host, port = split_address(text)
    except ConfigurationError:
        return
    assert 0 <= port < 65536
    assert host.encode("idna")
