"""Ranks that train alone and average what they changed, as a plain computation of all ranks does."""

import itertools
import json
import os
import signal
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ring.reference import bits, copied, exactly
from support.memory_group import MemoryGroup, Table, run_threads
from support.ranks import Outcome, ask, ranks_ended, run_ranks, started_ranks, tell
from support.world_config import changed_config

import ringtrain as rt
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain.diloco import DiLoCo
from ringtrain.elastic.state import HostsUpdatedInterrupt
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, AdamW, HostOptimizer, Nesterov, Rule
from ringtrain.shared import contract
from ringtrain_diloco.fragments import fragment_bounds

Array = NDArray[Any]
# Cut in two: (a) and (b, c); in three: each alone.
SHAPES = {"a": (40, 13), "b": (300,), "c": (7, 31)}
# Powers of two, so that nothing is rounded: what is equal is equal to the bit.
HALVES = Nesterov(lr=0.5, momentum=0.5)


@dataclass(frozen=True)
class Run:
    """One training. `outer`: with the rest, what a DiLoCo is made of."""

    sync_every: int
    fragments: int = 1
    overlap_steps: int = 0
    mix: float = 0.0
    outer: Rule = HALVES
    compression: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def steps(self) -> int:
        """No multiple of `sync_every` unless that is 1; few enough that float32 holds every value."""
        return {1: 5, 2: 7}.get(self.sync_every, 2 * self.sync_every + 1)


RUNS = [
    Run(sync_every, fragments, overlap_steps, mix, outer)
    for sync_every, fragments, overlap_steps, mix, outer in itertools.product(
        range(1, 8), (1, 2, 3), (0, 1, 2), (0.0, 0.5, 1.0), (HALVES, SGD(lr=1.0))
    )
    if fragments <= sync_every and overlap_steps < sync_every // fragments
]


def _start(rank: int) -> dict[str, Array]:
    random = np.random.default_rng([7, rank])
    return {name: random.integers(-8, 9, shape).astype(np.float32) for name, shape in SHAPES.items()}


def _change(rank: int, step: int, name: str) -> Array:
    """Return the values that the inner optimizer of `rank` adds to the weights `name` in this step."""
    random = np.random.default_rng([step, rank, len(SHAPES[name]), ord(name)])
    return random.integers(-4, 5, SHAPES[name]).astype(np.float32)


def _train(run: Run, group: CollectiveGroup | None, rank: int) -> list[dict[str, Array]]:
    """The local weights after every step, then those after `finish`, then the outer ones."""
    params = _start(rank)
    diloco = DiLoCo(params, **run.arguments, bucket_bytes=1000, group=group)
    seen = []
    for step in range(1, run.steps + 1):
        for name, weights in params.items():
            weights += _change(rank, step, name)
        diloco.step()
        seen.append(copied(params))
    diloco.finish()
    seen += [copied(params), copied(diloco.outer_weights)]
    diloco.close()
    return seen


def _reference(run: Run, size: int) -> list[list[dict[str, Array]]]:
    """By rank, what `_train` returns; written from the papers, in float64, with nothing of the product."""
    bounds = {1: ["abc"], 2: ["a", "bc"], 3: ["a", "b", "c"]}[run.fragments]
    outer = {name: array.astype(np.float64) for name, array in _start(0).items()}
    velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    local = [copied(outer) for _ in range(size)]
    seen: list[list[dict[str, Array]]] = [[] for _ in range(size)]
    sent_at, sent = dict.fromkeys(SHAPES, 0), dict[str, Array]()
    assert isinstance(run.outer, SGD)
    lr, momentum = run.outer.lr, run.outer.momentum

    def send(names: str, step: int) -> None:
        for name in names:
            sent[name] = sum(outer[name] - weights[name] for weights in local) / size
            sent_at[name] = step

    def take(mix: float) -> None:
        for name in list(sent):
            mean = sent.pop(name)
            velocity[name] = momentum * velocity[name] + mean
            outer[name] = outer[name] - lr * (mean + momentum * velocity[name])
            for weights in local:
                weights[name] = mix * weights[name] + (1 - mix) * outer[name]

    def look(weights_of: list[dict[str, Array]]) -> None:
        for rank, weights in enumerate(weights_of):
            seen[rank].append(copied(weights))

    for step in range(1, run.steps + 1):
        for rank in range(size):
            for name in SHAPES:
                local[rank][name] = local[rank][name] + _change(rank, step, name)
        if sent and step == max(sent_at.values()) + run.overlap_steps:
            take(run.mix)
        for index, names in enumerate(bounds):
            due = (index + 1) * run.sync_every // run.fragments
            if (step - due) % run.sync_every == 0:
                send(names, step)
                if not run.overlap_steps:
                    take(run.mix)
        look(local)
    take(run.mix)
    send("".join(name for name in SHAPES if sent_at[name] < run.steps), run.steps)
    take(0)
    for weights in local:
        weights.update(outer)
    look(local)
    look([outer] * size)
    return seen


def _all_trained(runs: list[Run]) -> list[list[dict[str, bytes]]]:
    rt.init()
    trained = [_train(run, None, rt.rank()) for run in runs]
    rt.shutdown()
    return [[bits(weights) for weights in seen] for seen in trained]


@pytest.mark.parametrize(
    ("size", "runs", "transport"),
    [(1, RUNS[::5], "auto"), (2, RUNS, "auto"), (2, RUNS[::5], "grpc"), (4, RUNS[::5], "auto")],
    ids=["one", "two", "two-over-grpc", "four"],
)
def test_every_step_has_the_weights_of_a_plain_computation(size: int, runs: list[Run], transport: str) -> None:
    """To the bit on all ranks, after every inner step, after finish(), and the outer ones: for H of 1 to 7, 1 to 3
    fragments, an overlap of 0 to 2 steps, and what mix has of them."""
    by_rank = run_ranks(_all_trained, size, runs, env={"RINGTRAIN_TRANSPORT": transport})
    for index, run in enumerate(runs):
        for rank, expected in enumerate(_reference(run, size)):
            found = by_rank[rank][index]
            for at, weights in enumerate(expected):
                assert found[at] == exactly(weights), f"{run}, rank {rank}, moment {at} of {len(expected)}"


def test_all_ranks_have_equal_weights_after_each_synchronization() -> None:
    """Without mix the local ones of what was synchronized; also compressed, where all take the rounded change."""
    runs = [Run(3, compression=compression) for compression in (None, "bf16", "int8")]
    by_rank = run_ranks(_all_trained, 3, runs)
    for index in range(len(runs)):
        for at in (2, 5, -2, -1):
            assert by_rank[1][index][at] == by_rank[0][index][at] == by_rank[2][index][at]
        assert by_rank[1][index][0] != by_rank[0][index][0], "ranks train alone in between"


def _synchronous(rate: float) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """DiLoCo with H = 1 and SGD(1) around SGD, and a HostOptimizer with that SGD: the same gradients."""
    rt.init()
    params = _start(rt.rank())
    host = HostOptimizer(params, SGD(lr=rate))
    diloco = DiLoCo(params, outer=SGD(lr=1), sync_every=1)
    for step in range(6):
        for name, weights in params.items():
            gradient = _change(rt.rank(), step, name)
            host.submit(name, gradient)
            weights -= np.float32(rate) * gradient
        host.step()
        diloco.step()
    both = bits(params), bits(host.weights)
    rt.shutdown()
    return both


def test_one_step_at_a_time_is_synchronous_sgd_to_the_bit() -> None:
    """H = 1 and SGD(1) outside: what HostOptimizer has of the inner rule."""
    for mine, synchronous in run_ranks(_synchronous, 2, 0.25):
        assert mine == synchronous
    rounded, synchronous = run_ranks(_synchronous, 2, 0.1)[0]
    for name in SHAPES:  # values below 16, six steps: within the rounding that the docstring tells of
        near = np.frombuffer(rounded[name], np.float32) - np.frombuffer(synchronous[name], np.float32)
        assert 0 < np.abs(near).max() <= 6 * np.spacing(np.float32(16))


def _disagreeing(other: dict[str, Any]) -> None:
    rt.init()
    arguments = asdict(Run(8, 2)) | {"outer": Nesterov(), "overlap_steps": 1, "mix": 0.25}
    DiLoCo(_start(0), **(arguments | (other if rt.rank() == 1 else {})))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"sync_every": 9}, "sync_every is 9 on rank 1, but 8 on rank 0"),
        ({"fragments": 3}, "fragments is 3 on rank 1, but 2 on rank 0"),
        ({"outer": Nesterov(lr=0.5)}, "outer is Nesterov(lr=0.5, momentum=0.9, nesterov=True"),
        ({"outer": AdamW()}, "but Nesterov(lr=0.7, momentum=0.9, nesterov=True"),
        ({"mix": 0.5}, "mix is 0.5 on rank 1, but 0.25 on rank 0"),
        ({"overlap_steps": 2}, "overlap_steps is 2 on rank 1, but 1 on rank 0"),
        ({"compression": "int8"}, "compression is 'int8' on rank 1, but None on rank 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_that_differ_are_named_on_all_ranks(other: dict[str, Any], words: str) -> None:
    """With both values."""
    for outcome in ranks_ended(_disagreeing, 3, other):
        assert (outcome.error or "").startswith("MismatchError: the optimizer's"), outcome
        assert words in (outcome.error or "")


def _unequal(sync_every: int, overlap_steps: int, steps: list[int]) -> None:
    rt.init()
    params = _start(0)
    diloco = DiLoCo(params, sync_every=sync_every, overlap_steps=overlap_steps)
    for _ in range(steps[rt.rank()]):
        diloco.step()
    diloco.finish()


@pytest.mark.parametrize("overlap_steps", [0, 1])
@pytest.mark.parametrize("steps", [[5, 4], [4, 6]], ids=["rest-differs", "synchronizations-differ"])
def test_ranks_that_took_other_numbers_of_steps_are_named(overlap_steps: int, steps: list[int]) -> None:
    """On all ranks, with both numbers, instead of a mean of other things or a wait."""
    outcomes: list[Outcome] = ranks_ended(_unequal, 2, 3, overlap_steps, steps)
    for outcome in outcomes:
        assert "MismatchError: DiLoCo: rank 1 begins" in (outcome.error or ""), outcome
        assert f"after inner step {steps[0]};" in (outcome.error or "")
        assert f"after inner step {steps[1]}, and rank 0 begins" in (outcome.error or "")


def _training_until_a_rank_is_gone() -> None:
    rt.init()
    diloco = DiLoCo(_start(0), sync_every=2, overlap_steps=1)
    for step in range(4):
        if rt.rank() == 1 and step == 1:
            tell("before its first exchange")
            ask()
        diloco.step()


def test_a_rank_that_is_lost_during_an_exchange_is_named() -> None:
    """By the step that would take the outer weights."""
    with started_ranks(_training_until_a_rank_is_gone, 2) as ranks:
        ranks.message(1)
        ranks.signal(1, signal.SIGKILL)
        (outcome,) = ranks.outcomes(ranks=[0])
    assert (outcome.error or "").startswith("PeerLost"), outcome
    assert "rank 1" in (outcome.error or "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sync_every": 0}, "sync_every is 0; expected at least 1"),
        ({"fragments": 0}, "fragments is 0; expected 1 to 3"),
        ({"fragments": 4}, "fragments is 4; expected 1 to 3"),
        ({"sync_every": 2, "fragments": 3}, "fragments is 3; expected 1 to 2"),
        ({"overlap_steps": -1}, "overlap_steps is -1; expected 0 to 99"),
        ({"fragments": 3, "overlap_steps": 33}, "overlap_steps is 33; expected 0 to 32"),
        ({"mix": 1.5}, "mix is 1.5; expected 0"),
        ({"mix": float("nan")}, "mix is nan; expected 0"),
        ({"outer": "sgd"}, "rule is a str; expected an instance of a rule"),
        ({"compression": "int4"}, 'compression is "int4"; expected one of bf16, fp16, int8'),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], words: str) -> None:
    """With its value and what was expected."""
    with pytest.raises(ConfigurationError, match=words.replace("(", "\\(")):
        DiLoCo(_start(0), **arguments, group=MemoryGroup(Table(1), 0))


def test_what_is_no_writable_array_is_refused() -> None:
    """It could not be changed in place, and so would never be trained together."""
    frozen = _start(0)
    frozen["b"].flags.writeable = False
    for params in ([1.0], {}, {"w": [1.0, 2.0]}, frozen):
        with pytest.raises(ConfigurationError, match="expected at least one writable numpy array"):
            DiLoCo(params, group=MemoryGroup(Table(1), 0))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match='parameter "w" is a masked array'):
        DiLoCo({"w": np.ma.masked_array([1.0], [True])}, group=MemoryGroup(Table(1), 0))


def test_an_elastic_job_wants_an_elastic_one() -> None:
    """The error names the argument."""
    (outcome,) = ranks_ended(_in_a_formation, 1)
    assert "ConfigurationError: DiLoCo was created in an elastic job without elastic=True" in (outcome.error or "")


def _in_a_formation() -> None:
    from ringtrain._core.process_groups.context import current

    rt.init()
    vars(current())["config"] = changed_config(current().config, formation=1)
    DiLoCo(_start(0))


def _resumed(run: Run, cut: int) -> tuple[list[dict[str, bytes]], list[dict[str, bytes]]]:
    """Local weights after each step from `cut` on: of a training that went on, and of one that began again."""

    def steps(params: dict[str, Array], diloco: DiLoCo, numbers: range) -> list[dict[str, bytes]]:
        seen = []
        for step in numbers:
            for name, weights in params.items():
                weights += _change(rt.rank(), step, name) * np.float32(0.3)  # which rounds
            diloco.step()
            seen.append(bits(params))
        return seen

    rt.init()
    params = _start(rt.rank())
    diloco = DiLoCo(params, **run.arguments)
    steps(params, diloco, range(cut))
    state = diloco.state_dict()
    went_on = steps(params, diloco, range(cut, 3 * run.sync_every))
    diloco.close()
    fresh = {name: np.zeros_like(array) for name, array in params.items()}
    again = DiLoCo(fresh, **run.arguments)
    again.load_state_dict(state)
    began_again = steps(fresh, again, range(cut, 3 * run.sync_every))
    rt.shutdown()
    return went_on, began_again


@pytest.mark.parametrize("compression", [None, "int8"])
@pytest.mark.parametrize("cut", [6, 7, 8, 9], ids=["sent", "on-its-way", "taken", "between"])
def test_a_training_that_begins_again_has_the_same_bits(cut: int, compression: str | None) -> None:
    """Also from a state that was saved while an exchange was under way."""
    run = Run(6, 1, 2, 0.5, Nesterov(), compression)
    for went_on, began_again in run_ranks(_resumed, 2, run, cut):
        assert began_again == went_on


def test_a_state_of_another_rank_is_refused() -> None:
    """Its local weights are not this rank's."""

    def on_a_rank(group: CollectiveGroup) -> str:
        diloco = DiLoCo(_start(0), group=group)
        state = diloco.state_dict()
        with pytest.raises(ConfigurationError) as error:
            diloco.load_state_dict({**state, "rank": 1 - group.rank})
        return str(error.value)

    for rank, words in enumerate(run_threads(on_a_rank, 2)):
        assert f"the state was saved with {{'rank': {1 - rank}, 'size': 2, 'fragments': 1}}" in words


def _momentum_steps(outer: dict[str, Array], velocity: dict[str, Array], size: int, steps: range) -> None:
    """Local weights begin as the outer ones; after `steps` of each rank one outer step of HALVES. Plain numpy."""
    for name in SHAPES:
        mean = -sum(_change(rank, step, name) for rank in range(size) for step in steps) / size
        velocity[name] = 0.5 * velocity[name] + mean
        outer[name] = outer[name] - 0.5 * (mean + 0.5 * velocity[name])


@pytest.mark.parametrize(("size", "cut"), [(1, 4), (4, 4), (1, 6), (4, 6)])
def test_a_state_loads_in_a_world_of_another_size(size: int, cut: int) -> None:
    """The outer weights and momentum go on; inner steps since the last synchronization, after step 4, do not."""

    def train(group: CollectiveGroup, diloco: DiLoCo, params: dict[str, Array], steps: range) -> None:
        for step in steps:
            for name, weights in params.items():
                weights += _change(group.rank, step, name)
            diloco.step()

    def saved(group: CollectiveGroup) -> dict[str, Any]:
        params = _start(0)
        diloco = DiLoCo(params, outer=HALVES, sync_every=4, group=group)
        train(group, diloco, params, range(1, cut + 1))
        return diloco.state_dict()

    states = run_threads(saved, 2)

    def went_on(group: CollectiveGroup) -> dict[str, Array]:
        params = {name: np.zeros_like(array) for name, array in _start(0).items()}
        diloco = DiLoCo(params, outer=HALVES, sync_every=4, group=group)
        diloco.load_state_dict(states[group.rank % 2])
        assert diloco.steps == cut
        train(group, diloco, params, range(cut + 1, 9))
        return params

    outer = {name: array.astype(np.float64) for name, array in _start(0).items()}
    velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    _momentum_steps(outer, velocity, 2, range(1, 5))
    _momentum_steps(outer, velocity, size, range(cut + 1, 9))
    for weights in run_threads(went_on, size):
        assert bits(weights) == exactly(outer)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_are_averaged(dtype: str) -> None:
    """Local SGD of whole numbers is their mean, in every dtype that HostOptimizer has."""
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)

    def on_a_rank(group: CollectiveGroup) -> Array:
        params = {"w": np.zeros((5, 3), kind)}
        diloco = DiLoCo(params, outer=SGD(lr=1), sync_every=1, group=group)
        params["w"] += kind.type(2 * group.rank + 1)
        diloco.step()
        return params["w"]

    for weights in run_threads(on_a_rank, 4):
        assert weights.dtype == kind
        assert (weights == 4).all()


def test_what_it_tells_of_a_synchronization() -> None:
    """The norm of the mean pseudo-gradient, how many there were, what one sends, and which part was hidden."""

    def on_a_rank(group: CollectiveGroup) -> DiLoCo:
        params = {"a": np.zeros(1000, np.float32), "b": np.zeros(1000, np.float32)}
        diloco = DiLoCo(params, sync_every=4, fragments=2, group=group)
        assert diloco.pseudo_gradient_norm is None
        for _ in range(2):
            params["a"] -= 1 + 2 * group.rank  # over two ranks 2 a step
            assert diloco.step() == (diloco.steps == 2)
        return diloco

    for diloco in run_threads(on_a_rank, 2):
        assert diloco.pseudo_gradient_norm == pytest.approx(4 * 1000**0.5)
        assert diloco.synchronizations == 1
        assert diloco.sync_bytes == 8000  # half of it to the other rank, and half of its new weights
        assert diloco.hidden_share == 0


def _asked_to_change(options: dict[str, Any], steps: int) -> list[float]:
    rt.init()
    params = {"w": np.zeros(3), "v": np.zeros(3)}
    diloco = DiLoCo(params, outer=SGD(lr=1.0), sync_every=4, elastic=True, **options)
    state = rt.elastic.State(diloco=diloco)
    for step in range(1, steps + 1):
        for array in params.values():
            array += 1.0 + 2 * rt.rank()
        is_due = state.diloco.step()
        if step == steps:
            state.on_hosts_updated(0.0, 0)
            with pytest.raises(HostsUpdatedInterrupt):
                (state.commit if is_due else state.check_host_updates)()
        elif is_due:
            state.commit()
    outer = diloco.outer_weights
    return [*outer["w"].tolist(), *outer["v"].tolist()]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"fragments": 2}, {"fragments": 2, "overlap_steps": 1, "mix": 1.0}], ids=str)
def test_a_planned_change_loses_no_inner_step(options: dict[str, Any], steps: int) -> None:
    """Those who leave have their part in the mean of all fragments, at a commit of one of them, and between two,
    where check_host_updates() has told them to."""
    assert run_ranks(_asked_to_change, 2, options, steps) == [[2.0 * steps] * 6] * 2


def _reported() -> list[dict[str, float]]:
    """The metrics of three reports, as an agent reads them."""
    rt.init()
    reader, writer = os.pipe()
    os.environ[contract.ENV_REPORT_FD] = str(writer)
    params = {"w": np.zeros(10, np.float32)}
    diloco = DiLoCo(params, sync_every=2)
    for step in range(1, 4):
        params["w"] -= 1.0 + 2 * rt.rank()
        diloco.step()
        rt.report(step, metrics={"diloco_drift": -1.0} if step == 3 else {"own": 1.0})
    return [json.loads(line).get("metrics", {}) for line in os.read(reader, 9999).splitlines()]


def test_reports_tell_of_synchronizations() -> None:
    """From the first on; a metric of the script's with such a name is the script's."""
    for before, after, last in run_ranks(_reported, 2):
        assert before == {"own": 1.0}
        drift = pytest.approx(4 * 10**0.5)
        synchronized = {"diloco_last_sync": 2, "diloco_hidden": 0, "diloco_bytes_a_step": 20}
        assert after == {"own": 1.0, "diloco_drift": drift, **synchronized}
        assert last == {"diloco_drift": -1.0, **synchronized}


def _hidden() -> float:
    rt.init()
    diloco = DiLoCo(_start(0), sync_every=3, overlap_steps=1)
    for _ in range(3):
        diloco.step()
    diloco.drain()  # an inner step as long as the exchange
    diloco.step()
    return diloco.hidden_share


def test_an_exchange_that_ends_during_inner_steps_is_hidden() -> None:
    """Nothing of it is waited for."""
    assert min(run_ranks(_hidden, 2)) > 0.8


def _reduced_meanwhile() -> list[float]:
    rt.init()
    diloco = DiLoCo(_start(0), sync_every=2, overlap_steps=1)
    sums = []
    for step in range(8):
        diloco.step()
        if rt.rank() == 0:
            diloco.drain()  # the other rank's collective comes while this one is in the exchange
        sums.append(float(rt.allreduce(np.full(1, step + rt.rank(), np.float32), op=rt.Sum)[0]))
    diloco.finish()
    return sums


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_script_may_reduce_what_it_likes_during_an_exchange(transport: str) -> None:
    """The exchange has a group of its own: what a script reduces needs no place among its collectives."""
    env = {"RINGTRAIN_TRANSPORT": transport}
    assert run_ranks(_reduced_meanwhile, 2, env=env) == [[2 * step + 1 for step in range(8)]] * 2


@pytest.mark.parametrize(
    ("nbytes", "fragments", "bounds"),
    [
        ([4, 4, 4, 4], 2, [0, 2, 4]),
        ([100, 1, 1], 3, [0, 1, 2, 3]),
        ([1, 1, 100], 3, [0, 1, 2, 3]),
        ([1, 1, 1, 9], 2, [0, 3, 4]),
        ([0, 0], 2, [0, 1, 2]),
        ([5], 1, [0, 1]),
    ],
    ids=str,
)
def test_fragments_have_about_as_many_bytes_and_are_never_empty(
    nbytes: list[int], fragments: int, bounds: list[int]
) -> None:
    """In the order of the parameters."""
    assert fragment_bounds(nbytes, fragments) == bounds
