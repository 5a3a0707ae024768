"""Errors of ranks that make different updates name the calls of the training script."""

import pytest

from ringtrain._core.negotiation.queues import JOIN
from ringtrain._core.wire.signature import WireSignature, WireTensorSignature, describe_mismatch
from ringtrain.errors import MismatchError
from ringtrain.optim.update_words import GRADIENTS_READ, describe_update_mismatch

BUCKET = (WireTensorSignature(None, "float32", (128,)),)
EQUALLY_OFTEN = (
    "every rank must call backward(), zero_grad() and step() equally often, and read gradients equally often"
)


def _mismatch(*kinds: str) -> MismatchError:
    signatures = (WireSignature(kind, BUCKET if kind in ("reduce_scatter", "all_gather") else ()) for kind in kinds)
    first, second = enumerate(signatures)
    return MismatchError(describe_mismatch(7, first, second))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ("reduce_scatter", "all_gather"),
            f"rank 0 made gradients of another backward pass and rank 1 called step(); {EQUALLY_OFTEN}",
        ),
        (
            ("all_gather", GRADIENTS_READ),
            "rank 0 called step() and rank 1 read or changed gradients, weights or groups before step(); "
            f"{EQUALLY_OFTEN}",
        ),
        (
            (JOIN, "reduce_scatter"),
            "rank 0 called join() and rank 1 made gradients of another backward pass; join() is not supported with a "
            "HostOptimizer, which needs equal numbers of steps: give all ranks equal numbers of batches (drop_last, "
            "ringtrain.data.shard), or use DistributedOptimizer",
        ),
    ],
    ids=["backward", "reads", "join"],
)
def test_the_calls_of_both_ranks_are_named(kinds: tuple[str, str], message: str) -> None:
    """In place of the collectives that the optimizer called."""
    assert str(describe_update_mismatch(_mismatch(*kinds))) == message


@pytest.mark.parametrize(
    "error",
    [
        _mismatch("all_gather", "broadcast"),
        _mismatch("broadcast", "all_gather"),
        MismatchError("parameter 0 is a on rank 0"),
    ],
    ids=["second", "first", "other"],
)
def test_an_error_about_something_else_is_unchanged(error: MismatchError) -> None:
    """Also if only one of the ranks made an update."""
    assert describe_update_mismatch(error) is error
