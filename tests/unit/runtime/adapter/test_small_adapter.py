"""An adapter of no framework, `support.strips`: each result is that of numpy on the joined batch."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ring.worlds import World, all_raise, world_of
from support import strips
from support.commands import completed
from support.strips import Strip

import ringtrain as rt
from ringtrain import adapter, elastic
from ringtrain.adapter import OptimizerReplicas, allreduce_gradient, broadcast_gradient
from ringtrain.errors import ConfigurationError, MismatchError, StateCorrupt
from ringtrain.optim import SGD

ROOT = Path(__file__).parents[4]
# What an adapter may import besides `ringtrain.adapter`: the page says the same.
PUBLIC = ("ringtrain", "ringtrain.errors", "ringtrain.optim", "ringtrain.elastic")


@pytest.fixture
def world() -> Iterator[World]:
    with world_of(2, "grpc") as made:
        assert isinstance(made, World)
        yield made


def test_collectives_are_those_of_numpy(world: World) -> None:
    """Reals and amounts: summed, averaged (amounts towards zero), gathered, sent, exchanged, and objects of strips."""

    def run(rank: int) -> list[object]:
        reals, amounts = Strip([1.5 + rank, -2.0]), Strip([5 + 2 * rank, -5], "amount")
        return [
            strips.allreduce(reals, rt.Sum),
            strips.allreduce(amounts),
            strips.allgather(Strip([float(rank)] * (rank + 1))),
            strips.broadcast(amounts, 1),
            strips.alltoall(Strip([float(10 * rank + at) for at in range(3)]), [1, 2]),
            strips.broadcast_object({"strip": amounts, "rank": rank}, 0),
        ]

    expected = [
        Strip([4.0, -4.0]),
        Strip([6, -5], "amount"),
        Strip([0.0, 1.0, 1.0]),
        Strip([7, -5], "amount"),
    ]
    of_rank = [(Strip([0.0, 10.0]), [1, 1]), (Strip([1.0, 2.0, 11.0, 12.0]), [2, 2])]
    sent = {"strip": Strip([5, -5], "amount"), "rank": 0}
    assert world.run(run) == [[*expected, exchanged, sent] for exchanged in of_rank]


def test_a_submission_in_any_order_has_its_own_result(world: World) -> None:
    """Names pair what ranks submit; the result is what the adapter makes of the array."""

    def run(rank: int) -> list[Strip]:
        names = ["a", "b"] if rank == 0 else ["b", "a"]
        begun = {name: strips.allreduce_async(Strip([float(ord(name))]), name) for name in names}
        return [begun[name].result() for name in "ab"]

    assert world.run(run) == [[Strip([2.0 * ord("a")]), Strip([2.0 * ord("b")])]] * 2


def test_ranks_that_disagree_all_raise_with_both_values(world: World) -> None:
    """A shape that differs, and an argument that is wrong on one rank alone."""
    errors = world.errors(lambda rank: strips.allreduce(Strip([1.0] * (rank + 1)), name="x"))
    all_raise(errors, MismatchError, "(1,)", "(2,)")
    errors = world.errors(lambda rank: strips.alltoall(Strip([1.0, 2.0]), [1, 1] if rank else [2, 1]))
    all_raise(errors, ConfigurationError, "[2, 1] add up to 3 rows")


def test_gradients_are_those_of_the_collectives(world: World) -> None:
    """Of a maximum to the rank that had it; of a broadcast the mean, at its root."""

    def run(rank: int) -> list[list[float]]:
        how = adapter.NamedReduction.of("Max", None, 1.0, 1.0, rt.global_process_set)
        own, grad = np.array([float(rank), 3.0 - rank], np.float32), np.ones(2, np.float32)
        (largest,) = adapter.NamedCollective.allreduce(how).run([own])
        (of_max,) = allreduce_gradient([grad], [own], [largest], how)
        (of_root,) = broadcast_gradient([grad * (rank + 1)], 1, rt.global_process_set)
        return [of_max.tolist(), of_root.tolist()]

    assert world.run(run) == [[[0.0, 2.0], [0.0, 0.0]], [[2.0, 0.0], [1.5, 1.5]]]


def test_a_host_optimizer_updates_as_one_process_on_the_joined_batch(world: World) -> None:
    """Weights of rank 0 to begin with, momentum, two groups of ranks' gradients; also after a reform."""
    grads = np.random.default_rng(5).integers(-8, 8, (4, 2, 6)).astype(np.float32)

    def run(rank: int) -> tuple[list[float], int]:
        weights = {"w": Strip([float(rank)] * 4), "b": Strip([float(rank)] * 2)}
        optimizer = strips.StripOptimizer(weights, SGD(lr=0.5, momentum=0.5))
        for number, own in enumerate(grads[:, rank]):
            if number == 2:
                optimizer.commit()
                optimizer.reform(range(2))
            optimizer.step({"w": Strip(own[:4].tolist()), "b": Strip(own[4:].tolist())})
        optimizer.close()
        return [*weights["w"].values, *weights["b"].values], optimizer.updates

    expected, velocity = np.zeros(6, np.float32), np.zeros(6, np.float32)
    for mean in grads.mean(axis=1):
        velocity = np.float32(0.5) * velocity + mean
        expected -= np.float32(0.5) * velocity
    assert world.run(run) == [(expected.tolist(), 4)] * 2


def test_a_rank_with_other_weights_is_found(world: World) -> None:
    """Within two updates, on all ranks."""

    def train(rank: int) -> None:
        replicas = OptimizerReplicas("strips", rt.global_process_set)
        look = strips.replica_of([Strip([1.0, 2.0]), Strip([3.0 + rank] * 20)])
        for _ in range(4):
            with replicas.compared(look):
                strips.allreduce(Strip([1.0]))

    for error in world.errors(train):
        assert isinstance(error, MismatchError | StateCorrupt)


def test_a_handler_keeps_and_sends_a_strip(world: World) -> None:
    """Committed, restored, and sent to a newcomer."""

    def run(rank: int) -> tuple[list[float], list[float]]:
        strip = Strip([float(rank)])
        handler = strips.StripHandler(strip)
        strip.values = [9.0]
        handler.restore()
        restored = strip.values
        handler.sync(1)
        return restored, strip.values

    assert world.run(run) == [([0.0], [1.0]), ([1.0], [1.0])]


def test_an_elastic_state_takes_a_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the registered extension; without it a strip is refused."""
    monkeypatch.setattr("ringtrain.elastic.participants._extensions", [])
    with pytest.raises(ConfigurationError, match="Strip"):
        elastic.State(strip=Strip([1.0]))
    elastic.register_extension(strips.EXTENSION)
    state = elastic.State(strip=Strip([1.0]))
    state.strip.values = [2.0]
    state.restore()
    assert state.strip == Strip([1.0])


def test_a_checkpoint_has_strips_by_an_installed_codec(tmp_path: Path) -> None:
    """Entry points of a distribution name it; nothing of ringtrain does."""
    installed = tmp_path / "strips-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: strips\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[ringtrain.checkpoint.codecs]\nsupport = support.strips:CODEC\n"
        "[ringtrain.checkpoint.tags]\nstrip = support.strips:CODEC\n"
    )
    program = (
        "import ringtrain\nfrom ringtrain.checkpoint import Checkpoints\nfrom support.strips import Strip\n"
        "ringtrain.init()\n"
        f"saved = Checkpoints({str(tmp_path / 'saved')!r})\n"
        "saved.save(1, {'strip': Strip([5, -5], 'amount')})\n"
        "assert saved.latest().state == {'strip': Strip([5, -5], 'amount')}, saved.latest().state\n"
    )
    paths = f"{tmp_path}:{ROOT / 'tests'}"
    completed([sys.executable, "-c", program], env={"PYTHONPATH": paths, "PATH": ""}, check=True)


def test_the_small_adapter_imports_the_interface_alone() -> None:
    """The same rule as `lint-imports` has for the adapters of frameworks."""
    tree = ast.parse(Path(strips.__file__).read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {name for name in found if name.startswith("ringtrain")}
    assert {name for name in ours if not name.startswith("ringtrain.adapter")} <= set(PUBLIC)


@pytest.mark.parametrize("module", ["", ".state", ".devices", ".communicators"])
def test_the_page_has_every_name_of_the_interface(module: str) -> None:
    """In the table of its module, and none besides; all of them have a docstring or are values."""
    text = (ROOT / "docs/adapters.md").read_text()
    table = text.split(f"\n## `ringtrain.adapter{module}`")[1].split("\n## ")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    __import__(f"ringtrain.adapter{module}")
    assert named == set(sys.modules[f"ringtrain.adapter{module}"].__all__)
