"""Sites train synchronously inside, and average once in many steps, as a plain computation of all sites does."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ring.reference import bits, copied, exactly
from support.ranks import ranks_ended, run_ranks

import ringtrain as rt
from ringtrain.diloco import DiLoCo
from ringtrain.optim import SGD, Nesterov, Rule

Array = NDArray[Any]
SHAPES = {"a": (40, 13), "b": (300,), "c": (7, 31), "d": (5,)}
FRAGMENTS = {1: ["abcd"], 2: ["a", "bcd"]}
HALVES = Nesterov(lr=0.5, momentum=0.5)
# Sites of 3 and 1 ranks, of ranks by turns, of unequal numbers: by 12 all means are whole numbers.
PAIRS, UNEQUAL, TURNS, THREE = [[0, 1], [2, 3]], [[0, 1, 2], [3]], [[0, 2], [3, 1]], [[0], [1, 2], [3]]


@dataclass(frozen=True)
class Run:
    """One training. `samples`: of a step, by rank. `left`: inner steps beyond two times H, by site."""

    sites: list[list[int]]
    sync_every: int | list[int]
    fragments: int = 1
    overlap_steps: int = 0
    mix: float = 0.0
    outer: Rule = HALVES
    samples: tuple[int, ...] = (1, 1, 1, 1)
    left: int | list[int] = 1

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("samples", "left")}

    def every(self, site: int) -> int:
        return self.sync_every if isinstance(self.sync_every, int) else self.sync_every[site]

    def steps(self, site: int) -> int:
        return 2 * self.every(site) + (self.left if isinstance(self.left, int) else self.left[site])


RUNS = [
    *[Run(sites, 3, outer=outer) for sites in (PAIRS, UNEQUAL, TURNS, THREE) for outer in (SGD(lr=1.0), HALVES)],
    *[Run(sites, 4, 2, 1, 0.5, SGD(lr=1.0)) for sites in (PAIRS, UNEQUAL)],
    Run(PAIRS, [6, 2], outer=SGD(lr=1.0), left=[0, 1]),  # the slow site's part in the mean is a quarter
    Run(PAIRS, [6, 2], 2, mix=0.5, left=[2, 0]),
    Run(UNEQUAL, [2, 6], 2, left=[0, 2]),
    Run(PAIRS, 2, samples=(8, 4, 2, 2)),
    Run([[0], [1], [2], [3]], 2, outer=SGD(lr=1.0), samples=(8, 4, 2, 2)),  # each rank alone
    Run([[0], [1], [2], [3]], [4, 2, 1, 1], outer=SGD(lr=1.0), left=[1, 1, 0, 0]),
    Run([[0, 1, 2, 3]], 2),
]


def _start(rank: int) -> dict[str, Array]:
    random = np.random.default_rng([7, rank])
    return {name: random.integers(-8, 9, shape).astype(np.float32) for name, shape in SHAPES.items()}


def _gradient(rank: int, step: int, name: str) -> Array:
    random = np.random.default_rng([step, rank, ord(name)])
    return 12 * random.integers(-2, 3, SHAPES[name]).astype(np.float32)


def _train(run: Run) -> list[dict[str, Array]]:
    """The local weights after every step, then those after `finish`, then the outer ones."""
    rank = rt.rank()
    site = next(number for number, ranks in enumerate(run.sites) if rank in ranks)
    params = _start(rank)
    diloco = DiLoCo(params, **run.arguments, bucket_bytes=1000)
    seen = []
    for step in range(1, run.steps(site) + 1):
        gradients = {name: _gradient(rank, step, name) for name in SHAPES}
        diloco.average(gradients)
        for name, weights in params.items():
            weights -= gradients[name]
        diloco.step(samples=run.samples[rank])
        seen.append(copied(params))
    diloco.finish()
    seen += [copied(params), copied(diloco.outer_weights)]
    diloco.close()
    return seen


@dataclass
class Site:
    """A site in the plain computation."""

    ranks: list[int]
    weights: dict[str, Array]
    step: int = 0
    samples: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHAPES, 0.0))
    pending: tuple[int, dict[str, Array]] | None = None  # since which step, and what outer weights
    seen: list[dict[str, Array]] = field(default_factory=list)


def _reference(run: Run) -> list[list[dict[str, Array]]]:
    """By rank, what `_train` returns; written from the papers, in float64, with nothing of the product."""
    outer = {name: array.astype(np.float64) for name, array in _start(0).items()}
    velocity = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    sites = [Site(list(ranks), copied(outer)) for ranks in run.sites]
    assert isinstance(run.outer, SGD)
    lr, momentum = run.outer.lr, run.outer.momentum

    def take(site: Site) -> None:
        assert site.pending is not None
        for name, value in site.pending[1].items():
            site.weights[name] = run.mix * site.weights[name] + (1 - run.mix) * value
        site.pending = None

    def advance(site: Site, to: int) -> None:
        for step in range(site.step + 1, to + 1):
            for name in SHAPES:
                mean = sum(_gradient(rank, step, name).astype(np.float64) for rank in site.ranks) / len(site.ranks)
                site.weights[name] = site.weights[name] - mean
                site.samples[name] += sum(run.samples[rank] for rank in site.ranks)
            if site.pending is not None and step == site.pending[0] + run.overlap_steps:
                take(site)
            site.seen.append(copied(site.weights))
            site.step = step

    def synchronize(names: str) -> None:
        for name in names:
            samples = [site.samples[name] for site in sites]
            apart = [count * (outer[name] - site.weights[name]) for count, site in zip(samples, sites, strict=True)]
            mean = sum(apart) / sum(samples)
            velocity[name] = momentum * velocity[name] + mean
            outer[name] = outer[name] - lr * (mean + momentum * velocity[name])
        for site in sites:
            site.samples |= dict.fromkeys(names, 0.0)
            site.pending = site.step, {name: outer[name].copy() for name in names}

    for cycle in range(2):
        for index, names in enumerate(FRAGMENTS[run.fragments]):
            for number, site in enumerate(sites):
                every = run.every(number)
                advance(site, cycle * every + (index + 1) * every // run.fragments)
            synchronize(names)
            if not run.overlap_steps:
                for site in sites:
                    take(site)
                    site.seen[-1] = copied(site.weights)
    for number, site in enumerate(sites):
        advance(site, run.steps(number))
        if site.pending is not None:
            take(site)
    for names in FRAGMENTS[run.fragments]:
        if any(site.samples[names[0]] for site in sites):
            synchronize(names)
    site_of = {rank: site for site in sites for rank in site.ranks}
    return [[*site_of[rank].seen, copied(outer), copied(outer)] for rank in sorted(site_of)]


def _all_trained(runs: list[Run]) -> list[list[dict[str, bytes]]]:
    rt.init()
    trained = [_train(run) for run in runs]
    rt.shutdown()
    return [[bits(weights) for weights in seen] for seen in trained]


@pytest.mark.parametrize(
    ("runs", "transport"),
    [(RUNS[::3], "auto"), (RUNS[1::3], "auto"), (RUNS[2::3], "auto"), (RUNS[::3], "grpc")],
    ids=["first", "second", "third", "over-grpc"],
)
def test_every_step_has_the_weights_of_a_plain_computation_of_all_sites(runs: list[Run], transport: str) -> None:
    """To the bit on all ranks, after every inner step, after finish(), and the outer ones: for sites of equal and
    unequal numbers of ranks, fragments, overlap, mix, H of each site, and samples that differ."""
    by_rank = run_ranks(_all_trained, 4, runs, env={"RINGTRAIN_TRANSPORT": transport})
    for index, run in enumerate(runs):
        for rank, expected in enumerate(_reference(run)):
            found = by_rank[rank][index]
            assert len(found) == len(expected)
            for at, weights in enumerate(expected):
                assert found[at] == exactly(weights), f"{run}, rank {rank}, moment {at} of {len(expected)}"


def test_one_step_at_a_time_is_the_synchronous_run_on_the_joined_batch() -> None:
    """H = 1 and SGD(1) outside, of sites of 3 and 1 ranks: plain SGD with the mean over all ranks."""
    run = Run(UNEQUAL, 1, outer=SGD(lr=1.0), left=3)
    for found in run_ranks(_all_trained, 4, [run]):
        weights = {name: array.astype(np.float64) for name, array in _start(0).items()}
        for step in range(1, run.steps(0) + 1):
            for name in weights:
                weights[name] -= sum(_gradient(rank, step, name) for rank in range(4)) / 4
            assert found[0][step - 1] == exactly(weights)


def test_sites_have_equal_weights_when_the_exchange_is_rounded() -> None:
    """With compression, float16 beside float32, and parameters fewer than ranks of a site."""
    for rank, (compressed, mixed) in enumerate(results := run_ranks(_rounded, 4)):
        assert compressed == results[0][0], rank
        assert mixed == results[0][1], rank


def _rounded() -> tuple[dict[str, bytes], dict[str, bytes]]:
    rt.init()
    ended = []
    for dtypes, compression in ((["float32"], "int8"), (["float16", "float32", "float64"], None)):
        random = np.random.default_rng([3, rt.rank()])
        params = {dtype: random.standard_normal((9, 30)).astype(dtype) for dtype in dtypes}
        diloco = DiLoCo(params, sites=PAIRS, sync_every=2, compression=compression)
        for _ in range(5):
            gradients = {name: random.standard_normal((9, 30)).astype(name) for name in params}
            diloco.average(gradients)
            for name, weights in params.items():
                weights -= gradients[name]
            diloco.step()
        diloco.finish()
        ended.append(bits(params))
        diloco.close()
    return ended[0], ended[1]


def _of_the_world() -> list[Any]:
    rt.init()
    diloco = DiLoCo(_start(0))
    found = [rt.site(), rt.sites(), diloco.site and diloco.site.ranks]
    diloco.close()
    alone = DiLoCo(_start(0), sites=())
    return [*found, alone.site]


def test_the_sites_of_the_world_are_the_default() -> None:
    """DiLoCo uses the sites that RINGTRAIN_SITES names; without this variable, each rank is a site by itself."""
    sites = {"far": [0, 2], "near": [1, 3]}
    for rank, found in enumerate(run_ranks(_of_the_world, 4, env={"RINGTRAIN_SITES": "far,near,far,near"})):
        name = "near" if rank % 2 else "far"
        assert found == [name, sites, sites[name], None]
    assert run_ranks(_of_the_world, 2) == [["", {"": [0, 1]}, None, None]] * 2
    for outcome in ranks_ended(_of_the_world, 2, env={"RINGTRAIN_SITES": "far"}):
        assert "RINGTRAIN_SITES is far; expected 2 names with commas" in (outcome.error or "")


def _told() -> dict[str, Any]:
    rt.init()
    params = {name: np.zeros(1000, np.float32) for name in "ab"}
    diloco = DiLoCo(params, sites=UNEQUAL, sync_every=2)
    for _ in range(2):
        for weights in params.values():
            weights -= 1
        diloco.step()
    names = "sync_bytes", "pseudo_gradient_norm", "synchronizations", "state_bytes"
    return {name: getattr(diloco, name) for name in names} | {"site": diloco.site and diloco.site.ranks}


def test_only_peers_exchange_between_sites() -> None:
    """A site of one rank sends and gets all: one of its three peers has all, and the others send nothing."""
    told = run_ranks(_told, 4)
    assert [one["sync_bytes"] for one in told] == [8000, 0, 0, 8000]
    assert [one["site"] for one in told] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [3]]
    for one in told:
        assert one["pseudo_gradient_norm"] == pytest.approx(2 * 2000**0.5)
        assert one["synchronizations"] == 1
    assert [one["state_bytes"] for one in told] == [4000, 0, 0, 4000]


def _resumed() -> tuple[list[dict[str, bytes]], list[dict[str, bytes]]]:
    """Local weights after each step from the cut on: of a training that went on, and of one that began again."""
    rt.init()

    def steps(diloco: DiLoCo, params: dict[str, Array], numbers: range) -> list[dict[str, bytes]]:
        seen = []
        for step in numbers:
            gradients = {name: _gradient(rt.rank(), step, name) for name in SHAPES}
            diloco.average(gradients)
            for name, weights in params.items():
                weights -= np.float32(0.3) * gradients[name]  # which rounds
            diloco.step()
            seen.append(bits(params))
        return seen

    options: dict[str, Any] = {"sites": THREE, "sync_every": 4, "overlap_steps": 2, "mix": 0.25}
    params = _start(rt.rank())
    diloco = DiLoCo(params, **options)
    steps(diloco, params, range(5))
    state = diloco.state_dict()
    went_on = steps(diloco, params, range(5, 12))
    diloco.close()
    fresh = {name: np.zeros_like(array) for name, array in params.items()}
    again = DiLoCo(fresh, **options)
    again.load_state_dict(state)
    with pytest.raises(
        rt.ConfigurationError, match=r"'sites': '\[\[0\], \[1, 2\], \[3\]\]'.* this rank has .*'sites': '\[\[0, 1"
    ):
        DiLoCo(_start(0), **options | {"sites": PAIRS}).load_state_dict(state)
    return went_on, steps(again, fresh, range(5, 12))


def test_a_training_that_begins_again_has_the_same_bits() -> None:
    """From a state that each rank saved, with an exchange on its way; one of other sites is refused."""
    for went_on, began_again in run_ranks(_resumed, 4):
        assert began_again == went_on


def _alone_in_a_site() -> None:
    rt.init()
    params = _start(0)
    diloco = DiLoCo(params, sites=PAIRS, sync_every=1)
    if rt.rank() == 3:
        params["b"] += 1
    diloco.step()


def test_a_rank_with_other_weights_than_its_site_is_named() -> None:
    """On all ranks: its gradients were not averaged with those of the site."""
    for outcome in ranks_ended(_alone_in_a_site, 4):
        assert "MismatchError: DiLoCo: rank 3 and rank 2 are in one site but have different weights" in (
            outcome.error or ""
        )
        assert "average()" in (outcome.error or "")


def _wrong(arguments: dict[str, Any]) -> None:
    rt.init()
    DiLoCo(_start(0), **arguments).step(samples=-1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sites": [[0, 1], [1]]}, r"sites is [[0, 1], [1]]; expected each rank from 0 to 1 in exactly one site"),
        ({"sites": [[0]]}, "sites is [[0]]; expected each rank from 0 to 1"),
        ({"sync_every": [2, 2, 2]}, "sync_every is [2, 2, 2]; expected one number, or"),
        ({"sync_every": [2, 0]}, "sync_every is 0; expected at least 1 inner step"),
        ({"sync_every": [8, 2], "fragments": 3}, "fragments is 3; expected 1 to 2"),
        ({"sites": [[0, 1]], "elastic": True}, "sites is ((0, 1),); expected one rank per site with elastic=True"),
        ({}, "samples is -1; expected a finite number, 0 or more"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], words: str) -> None:
    """On all ranks, with its value and what was expected."""
    for outcome in ranks_ended(_wrong, 2, arguments):
        assert f"ConfigurationError: DiLoCo: {words}" in (outcome.error or ""), outcome


def _unequal_rounds(steps: list[int]) -> None:
    rt.init()
    diloco = DiLoCo(_start(0), sync_every=[4, 2])
    for _ in range(steps[rt.rank()]):
        diloco.step()
    diloco.finish()


def test_a_site_that_synchronizes_less_often_is_named() -> None:
    """The error on every rank names the rank whose data ended early, and both numbers of inner steps."""
    for outcome in ranks_ended(_unequal_rounds, 2, [8, 3]):
        assert "rank 1 begins finish() after inner step 3, and rank 0 begins the synchronization" in (
            outcome.error or ""
        )
        assert "after inner step 8" in (outcome.error or "")
