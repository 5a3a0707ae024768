"""ringtrain.torch.elastic: models, optimizers and samplers go on while ranks are lost, replaced and added."""

import pytest
from frameworks.harness import Scenarios

SCENARIOS = Scenarios("torch", "torch_elastic")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("scenario", SCENARIOS.names())
def test_torch(scenario: str) -> None:
    """Weights and ledger are those of an undisturbed run."""
    assert not SCENARIOS.failure(scenario)
