"""Who starts ranks where agents do not is found by the backend's name."""

from dataclasses import replace
from typing import Any

import pytest
from support.small_job import of_agent

from ringtrain.errors import ConfigurationError
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.starters import StarterContext, open_starter


def context(backend: str) -> StarterContext:
    ranks: Any = None
    return StarterContext(replace(AgentConfig.from_env(of_agent()), backend=backend), {}, ranks, lambda _: None)


def test_an_agent_that_starts_its_ranks_needs_none() -> None:
    assert open_starter(context("ring")) is None


def test_a_missing_plugin_is_named() -> None:
    """One line says what to install, and where."""
    with pytest.raises(ConfigurationError) as refused:
        open_starter(context("other"))
    assert str(refused.value) == (
        "RINGTRAIN_BACKEND=other needs the plugin ringtrain-other, which this image does not have; "
        "pip install 'ringtrain[other]' in the image"
    )
