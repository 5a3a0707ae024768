"""A training script gives the weights that torch alone gives on the joined batch, or is refused in words."""

import pytest
from frameworks.harness import Checks

MODULES = ("torch_scripts", "torch_scripts_models", "torch_scripts_restarts")
OPTIMIZERS = [
    "distributed",
    "host",
]
TRANSPORTS = {"shared-memory": "", "grpc": "grpc", "torch": "torch"}
WORLDS = [(transport, ranks) for transport in ("shared-memory", "grpc") for ranks in (1, 2, 3)] + [("torch", 2)]


def _table(optimizer: str, transport: str) -> Checks:
    env = {
        "RINGTRAIN_TEST_OPTIMIZER": optimizer,
        "RINGTRAIN_TIMEOUT": "20",
        "RINGTRAIN_STALL_TIMEOUT": "20",
        **({"RINGTRAIN_TRANSPORT": transport} if transport else {}),
    }
    return Checks("torch", MODULES, tuple(env.items()))


TABLES = {(o, t): _table(o, TRANSPORTS[t]) for o in OPTIMIZERS for t in TRANSPORTS}


@pytest.mark.parametrize("script", next(iter(TABLES.values())).names())
@pytest.mark.parametrize(
    ("transport", "ranks"), WORLDS, ids=lambda part: part if part in TRANSPORTS else f"ranks-{part}"
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_script(script, ranks, transport, optimizer):
    assert not TABLES[optimizer, transport].failure(script, ranks)
