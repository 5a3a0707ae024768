"""A rank starter is found by the name of the job's backend."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_job import of_agent

from ringtrain.errors import ConfigurationError
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.starters import StarterContext, open_starter

JOB = Path(__file__).parents[4] / "worker_image/ringtrain_job"


def context(backend: str) -> StarterContext:
    ranks: Any = None
    return StarterContext(replace(AgentConfig.from_env(of_agent()), backend=backend), {}, ranks, lambda _: None)


def test_an_agent_that_starts_its_ranks_needs_none() -> None:
    assert open_starter(context("ring")) is None


def test_a_missing_plugin_is_named() -> None:
    """One line names the package to install and its source."""
    with pytest.raises(ConfigurationError) as refused:
        open_starter(context("other"))
    assert str(refused.value) == (
        "RINGTRAIN_BACKEND=other needs the plugin ringtrain-other, which is not in this image; "
        "pip install 'ringtrain[other]' in the image"
    )


@pytest.mark.parametrize("folder", ["agent", "launcher", "control", "logs"])
def test_the_core_names_no_other_backend(folder: str) -> None:
    """The core contains only the contract's variables and reasons, which users read."""
    words = re.compile(r"\bmpi|_mpi\b", re.IGNORECASE)
    contracts = re.compile(r"contract\.ENV_MPI_\w+|^ +MPIRUN_NOT_FOUND = .*|spec\.mpi\.\w+")
    for file in sorted((JOB / folder).rglob("*.py")):
        lines = (contracts.sub("", line) for line in file.read_text().splitlines())
        assert [line for line in lines if words.search(line)] == [], file
