"""Calls of a training function by `elastic.run`."""

from typing import Any

from ring.worlds import world_of

import ringtrain
from ringtrain import elastic
from ringtrain.elastic.running import run_fn
from ringtrain.errors import PeerLost


def test_reset_callbacks_run_when_the_world_has_changed() -> None:
    """Before the function is called again, and not before its first call. Committed values are as they were."""
    calls: list[Any] = []

    @elastic.run
    def train(state: Any) -> str:
        calls.append(state.step)
        state.step += 1
        state.on_hosts_updated(0.0, 0)
        if state.step < 3:
            state.commit()
        return "trained"

    state: Any = elastic.State(step=1)
    state.register_reset_callbacks([lambda: calls.append("reset")])
    try:
        assert train(state) == "trained"
    finally:
        ringtrain.shutdown()
    assert calls == [1, "reset", 2]


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
