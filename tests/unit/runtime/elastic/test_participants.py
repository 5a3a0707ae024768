"""The order in which a state calls its participants, and the registration of more."""

from collections.abc import Mapping, Sequence
from typing import Any

from ring.worlds import world_of

from ringtrain import elastic
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.formations import FormerFormation
from ringtrain.elastic.agreement import ElasticCommonStep
from ringtrain.elastic.handlers import HandlerParticipant


class Thing:
    """A value that nothing else knows."""


class Recorder(elastic.Participant):
    """Notes what is called. `tells`: its offer."""

    def __init__(self, value: Thing, tells: int = 0) -> None:
        self.value, self.calls, self.tells = value, list[str](), tells

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if callable(found) and not name.startswith("_"):
            super().__getattribute__("calls").append(name)
        return found

    def offer(self) -> int:
        return self.tells

    def plan(self, offers: Sequence[int]) -> None:
        self.calls.append(str(list(offers)))


def _calls(rank: int) -> list[list[str]]:
    recorder = Recorder(Thing(), rank)
    state: Any = elastic.State(handlers=[(Thing, lambda _: recorder)], thing=recorder.value, step=0)
    found = []
    for act in (state.sync, state.commit, state.restore):
        recorder.calls.clear()
        act()
        found.append(list(recorder.calls))
    return found


def test_the_protocol() -> None:
    """In a new world, at a commit and after a loss."""
    with world_of(2) as world:
        found = world.run(_calls)
    sync = ["discard", "kinds", "offer", "plan", "[0]", "receive", "go_back", "commit", "prepare", "adopt"]
    commit = ["check", "wait", "commit", "finish_commit"]
    assert found == [[[*sync, "finish_commit"], commit, ["restore"]]] * 2


def _newcomer(rank: int) -> tuple[int, list[int]]:
    """Rank 0 joins rank 1 and takes its values; then the world breaks before rank 0 has adopted them."""
    current().former = FormerFormation(1, (None, 0))
    lost = Losing(Thing())
    state: Any = elastic.State(handlers=[(Thing, lambda _: lost)], thing=lost.value, step=5 * rank)
    seen = []
    try:
        state.sync()
    except RuntimeError:
        seen.append(state.step)
    lost.is_lost = False
    current().former = FormerFormation(0, (None, None))  # the survivor lost its state
    state.sync()
    return rank, [*seen, state.step]


class Losing(elastic.Participant):
    """Fails as it prepares, as where a rank is lost."""

    undoable = 1

    def __init__(self, value: Thing) -> None:
        self.value, self.is_lost = value, True

    def prepare(self, world: Any) -> None:
        if self.is_lost:
            raise RuntimeError("lost")


def test_a_newcomer_puts_back_what_it_had_if_its_world_breaks_before_it_is_adopted() -> None:
    """The values of others without their optimizer's state would be nobody's state."""
    with world_of(2) as world:
        found = world.run(_newcomer)
    assert found == [(0, [5, 0]), (1, [5, 0])]


class Text(elastic.StateHandler):
    """Handler of a text. `saved`: the committed one."""

    saved = ""

    def save(self) -> None:
        self.saved = self.value

    def restore(self) -> None:
        self.value = self.saved

    def sync(self, root: int = 0) -> None:
        self.value = self.saved = f"of rank {root}"


def test_a_rank_has_its_own_values_again_if_it_does_not_adopt_those_of_others() -> None:
    """A handler's committed copy, as it was before the values were received; after `adopt` there is no way back."""
    for is_adopted in (False, True):
        participant = HandlerParticipant(Text("own"))
        participant.commit()
        participant.receive(ElasticCommonStep(3, donor=1, transfers=True, offers={}), is_undone=True)
        participant.restore()
        assert participant.value == "of rank 1"
        if is_adopted:
            participant.adopt()
        participant.discard()
        participant.restore()
        assert participant.value == ("of rank 1" if is_adopted else "own")


class Replacing(elastic.Participant):
    """Has another object after it has received, as an optimizer has other arrays."""

    def __init__(self, value: Thing) -> None:
        self.value = value

    def receive(self, agreed: ElasticCommonStep, is_undone: bool) -> None:
        self.value = Thing()


def test_the_attribute_of_a_state_is_the_new_object_of_its_participant() -> None:
    """After each sync; other attributes stay."""

    def sync(_: int) -> tuple[bool, int]:
        before = Thing()
        state: Any = elastic.State(handlers=[(Thing, Replacing)], thing=before, step=2)
        state.sync()
        return state.thing is before, state.step

    with world_of(1) as world:
        assert world.run(sync) == [(False, 2)]


class Self(Thing):
    """A value that makes its own participant."""

    def as_participant(self) -> elastic.Participant:
        return Recorder(self)


def test_a_value_makes_its_own_participant() -> None:
    """Before handlers of the state and extensions are asked."""
    value = Self()
    state: Any = elastic.State(handlers=[(Thing, Losing)], one=value, other=Thing())
    kinds = {name: type(participant).__name__ for name, participant in state._participants.items() if name}
    assert kinds == {"one": "Recorder", "other": "Losing"}
    assert state.one is value


def _participants(left: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, elastic.Participant]:
    return {name: Recorder(value) for name, value in left.items() if isinstance(value, Thing)}


def test_a_feature_registers_its_participants() -> None:
    """For values of states that are made afterwards; the state's attribute is the participant's value."""
    elastic.register_extension(elastic.StateExtension(_participants))
    thing = Thing()
    state: Any = elastic.State(thing=thing, step=1)
    assert state.thing is thing
    state.restore()
    assert (state.thing, state.step) == (thing, 1)


def test_an_extension_needs_no_participants() -> None:
    """By default it makes none, so that plain values and those of handlers are as without it."""
    assert elastic.StateExtension().participants({"thing": Thing()}, {}) == {}
