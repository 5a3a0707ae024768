"""Calls of a training function by `elastic.run`."""

from typing import Any

from ring.worlds import world_of

from ringtrain import elastic
from ringtrain.elastic.running import run_fn
from ringtrain.errors import PeerLost


def test_without_an_agent_a_loss_ends_the_training() -> None:
    """Nobody makes another world: the function is called once, and its error is raised."""
    calls = []

    def train(state: Any) -> None:
        calls.append(state.step)
        raise PeerLost(1, "rank 1 was lost") if len(calls) == 1 else ValueError("called again")

    def stay() -> None:
        """The test has joined the world already."""

    with world_of(1) as world:
        (error,) = world.errors(lambda _: run_fn(train, stay)(elastic.State(step=4)))
    assert isinstance(error, PeerLost)
    assert calls == [4]
