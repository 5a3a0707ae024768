"""A training script gives the weights that torch alone gives on the joined batch, or is refused in words."""

import pytest
from frameworks.harness import Checks

MODULES = (
    "torch_scripts",
    "torch_scripts_models",
    "torch_scripts_optimizers",
    "torch_scripts_restarts",
    "torch_scripts_weights",
)
OPTIMIZERS = ("distributed", "host")
TRANSPORTS = {"shared-memory": "", "grpc": "grpc", "torch": "torch"}
WORLDS = [(transport, ranks) for transport in ("shared-memory", "grpc") for ranks in (1, 2, 3)] + [("torch", 2)]
PLACES = [(optimizer, *world) for optimizer in OPTIMIZERS for world in WORLDS]


def _table(optimizer: str, transport: str) -> Checks:
    env = {
        "RINGTRAIN_TEST_OPTIMIZER": optimizer,
        "RINGTRAIN_TIMEOUT": "20",
        "RINGTRAIN_STALL_TIMEOUT": "20",
        **({"RINGTRAIN_TRANSPORT": transport} if transport else {}),
    }
    return Checks("torch", MODULES, tuple(env.items()))


TABLES = {(o, t): _table(o, TRANSPORTS[t]) for o in OPTIMIZERS for t in TRANSPORTS}


@pytest.mark.sampled(2, of="place")
@pytest.mark.parametrize("script", next(iter(TABLES.values())).names())
@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place)))
def test_script(script: str, place: tuple[str, str, int]) -> None:
    """Of an optimizer, over a transport, with so many ranks."""
    optimizer, transport, ranks = place
    assert not TABLES[optimizer, transport].failure(script, ranks)
