"""The Estimator and resolvers in worlds of their own: settings, tasks, folders and tf.estimator's signatures."""

import pytest
from frameworks.harness import Scenarios

CHECKS = Scenarios("keras", "estimators")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("check", CHECKS.names())
def test_estimator(check: str) -> None:
    """The check holds."""
    assert not CHECKS.failure(check)
