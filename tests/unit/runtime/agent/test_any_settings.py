"""Agent and launcher accept any environment, or a ConfigurationError describes the problem."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.small_job import of_agent

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.launcher.config import LauncherConfig

# A variable can hold any bytes but NUL; what is no UTF-8 arrives as surrogates.
WORDS = ["0", "1", "-1", "2", "x", "", " ", "1e400", "nan", "inf", "1e300", "٣", "1_0", "9" * 400, "9" * 5000]
TEXTS = [
    "mpi",
    "ring",
    "openmpi",
    "tensors",
    "x..y:1",
    "[::1]:3",
    "\udcff:1",
    "a:" + "9" * 5000,
    "a\n:1",
    "'",
    "/",
]
VALUES = st.sampled_from(WORDS + TEXTS) | st.text(st.characters(exclude_characters="\0"), max_size=40)
OURS = sorted(value for name, value in vars(contract).items() if name.startswith("ENV_") and isinstance(value, str))
GOOD = of_agent()
LONGEST_MESSAGE = 2000


@pytest.mark.parametrize("config", [AgentConfig, LauncherConfig])
@given(changed=st.dictionaries(st.sampled_from(OURS), VALUES, max_size=4), missing=st.sets(st.sampled_from(OURS)))
@example(changed={"RINGTRAIN_TIMEOUT": "1e300"}, missing=set())
@example(changed={"RINGTRAIN_NUM_WORKERS": "9" * 5000}, missing=set())
@example(changed={"RINGTRAIN_SECRET_DIR": "/proc/self/mem"}, missing=set())
@example(changed={"RINGTRAIN_SECRET_DIR": "a" * 5000}, missing=set())
@example(changed={"RINGTRAIN_BACKEND": "mpi", "RINGTRAIN_MPI_OPTIONS": "'"}, missing=set())
@example(changed={"RINGTRAIN_LAUNCHER_ADDRESS": "\udcff:1"}, missing=set())
@example(changed={"RINGTRAIN_OTEL": "9" * 5000}, missing=set())
@example(changed={"RINGTRAIN_SINKS": "9" * 5000}, missing=set())
@example(changed={"RINGTRAIN_LAUNCHER_ADDRESS": "a:" + "9" * 5000}, missing=set())
def test_any_variables(config: Any, changed: dict[str, str], missing: set[str]) -> None:
    """Good settings of which some are changed and, in half of the cases, some are missing."""
    env = {**{name: value for name, value in GOOD.items() if name not in missing}, **changed}
    try:
        config.from_env(env)
        message = ""
    except ConfigurationError as error:
        message = str(error)
    assert len(message) < LONGEST_MESSAGE
    message.encode()


@pytest.mark.parametrize("config", [AgentConfig, LauncherConfig])
def test_good_variables(config: Any) -> None:
    """The settings from which the other tests start are valid."""
    config.from_env(GOOD)
