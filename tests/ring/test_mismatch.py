"""Ranks that mean different things all raise an error that names two of them and both values."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import ringtrain as rt
from ring.worlds import TRANSPORTS, all_raise, world_of
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import MismatchError
from ringtrain.optim import SGD, AdamW, HostOptimizer

# What three ranks call, of which one is different, and what every one of them must then read.
CASES: dict[str, tuple[Callable[[int], object], str]] = {
    "shape": (
        lambda rank: rt.allreduce(np.ones((64 if rank == 2 else 32, 3, 3)), name="conv1.weight"),
        r'allreduce "conv1.weight": shape is \(32, 3, 3\) on rank [01] and \(64, 3, 3\) on rank 2; '
        r"every rank must build the same model",
    ),
    "dtype": (
        lambda rank: rt.allreduce(np.ones(3, np.float16 if rank == 0 else np.float32)),
        r"allreduce #1: dtype is float16 on rank 0 and float32 on rank [12]; every rank must use the same",
    ),
    "op": (
        lambda rank: rt.allreduce(np.ones(3), rt.Max if rank == 1 else rt.Sum, name="loss"),
        r'allreduce "loss" #1: op is (Max|Sum) on rank [01] and (Max|Sum) on rank [12]; every rank must pass',
    ),
    "root": (
        lambda rank: rt.broadcast(np.ones(3), 1 if rank == 2 else 0),
        r"broadcast #1: root rank is 0 on rank [01] and 1 on rank 2; every rank must pass the same",
    ),
    "name": (
        lambda rank: rt.allreduce(np.ones(3), name="b" if rank == 1 else "a"),
        r'allreduce #1: name is "[ab]" on rank [01] and "[ab]" on rank [12]; every rank must submit the same',
    ),
    "name-missing": (
        lambda rank: rt.allreduce(np.ones(3), name=None if rank == 2 else "a"),
        r'allreduce #1: name is "a" on rank [01] and not given on rank 2',
    ),
    "kind": (
        lambda rank: rt.barrier() if rank == 0 else rt.allgather(np.ones(3), name="x"),
        r'collective #1: rank 0 called barrier and rank [12] called allgather "x"; '
        r"every rank must call the same collectives in the same order",
    ),
    "columns": (
        lambda rank: rt.allgather(np.ones((rank + 1, 4 if rank == 2 else 5))),
        r"allgather #1: shape is \(any, 5\) on rank [01] and \(any, 4\) on rank 2",
    ),
    "group-size": (
        lambda rank: rt.grouped_allreduce([np.ones(2)] * (3 if rank == 0 else 2), name="g"),
        r'rank 0 called allreduce "g.0" and 2 more of 3 tensors and rank [12] called .* and 1 more of 2 tensors',
    ),
    "group-of-none": (
        lambda rank: rt.grouped_allreduce([]) if rank == 0 else rt.barrier(),
        r"collective #1: rank 0 called allreduce and rank [12] called barrier; every rank must call the same",
    ),
    "scatter-group-of-none": (
        lambda rank: rt.grouped_reducescatter([]) if rank == 0 else rt.grouped_reducescatter([np.ones(3)]),
        r"reducescatter.* on rank|rank 0 called reducescatter",
    ),
    "no-rows": (
        lambda rank: rt.allgather(np.ones((0, 3))) if rank == 0 else rt.barrier(),
        r"collective #1: rank 0 called allgather and rank [12] called barrier; every rank must call the same",
    ),
    "group-member": (
        lambda rank: rt.grouped_allreduce([np.ones(2), np.ones(2 + (rank == 2))], name="g"),
        r'allreduce "g.1" \(tensor 1 of 2\): shape is \(2,\) on rank [01] and \(3,\) on rank 2',
    ),
    "bounds": (
        lambda rank: group_of().reduce_scatter(np.ones(3), [0, 1, 2, 3] if rank else [0, 2, 2, 3]).wait(),
        r"reduce_scatter #1: bounds or segment size are \[.*\] on rank 0 and \[.*\] on rank [12]",
    ),
    "process-set": (
        lambda rank: rt.add_process_set([0, 1] if rank == 0 else [0, 2]),
        r"rank 0 called add_process_set\(\[0, 1\]\) and rank [12] called add_process_set\(\[0, 2\]\)",
    ),
}


MANY = 1200  # tensors: their signature is longer than what ranks show each other as a whole


def many_tensors(rank: int, name: str | None = None) -> list[np.ndarray]:
    """As many tensors as the layers of a large model, of which rank 2 has the last two in the other order."""
    last = [np.ones((3, 9)), np.full((9, 3), 100.0)]
    return [np.ones(1)] * (MANY - 2) + (last[::-1] if rank == 2 else last)


LONG = "layer." * 1000
CASES |= {
    "last-of-many": (
        lambda rank: rt.grouped_allreduce(many_tensors(rank), rt.Sum),
        rf"allreduce #1 \(tensor {MANY - 2} of {MANY}\): shape is \(3, 9\) on rank [01] and \(9, 3\) on rank 2;",
    ),
    "many-gathered": (
        lambda rank: rt.grouped_allgather(many_tensors(rank), name="g"),
        rf'allgather "g.{MANY - 2}" .*: shape is \(any, 9\) on rank [01] and \(any, 3\) on rank 2;',
    ),
    "end-of-a-long-name": (
        lambda rank: rt.allreduce(np.ones(3), name=f"{LONG}{'kernel' if rank == 2 else 'bias'}"),
        r'name is "….*layer.bias" on rank [01] and "….*layer.kernel" on rank 2; every rank must submit the same',
    ),
    "dtype-of-parts": (
        lambda rank: group_of().all_to_all([np.ones(2, np.float64 if rank else np.float32)] * 3).wait(),
        r"all_to_all #1: dtype is float32 on rank 0 and float64 on rank [12]; every rank must use the same",
    ),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("collective", "expected"), CASES.values(), ids=CASES)
def test_all_ranks_raise_what_differs(transport: str, collective: Callable[[int], object], expected: str) -> None:
    """Every rank raises MismatchError with both ranks and both values, and goes on raising it."""
    with world_of(3, transport) as world:
        errors = world.errors(collective)
        again = world.errors(lambda rank: rt.barrier())
    for error, later in zip(errors, again, strict=True):
        assert isinstance(error, rt.errors.MismatchError), error
        assert re.search(expected, str(error)), error
        assert str(later) == str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_group_may_have_any_number_of_tensors(transport: str) -> None:
    """Ranks exchange some megabytes of metadata about 60,000 tensors, which need not fit into one request."""
    tensors = [np.ones(1, np.float32)] * 60_000
    with world_of(2, transport) as world:
        for result in world.run(lambda rank: rt.grouped_allreduce(tensors, rt.Sum)):
            assert np.concatenate(result).tolist() == [2.0] * len(tensors)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_asynchronous_mismatch_is_raised_by_synchronize(transport: str) -> None:
    """The handle of the collective that differs raises, and so do those behind it."""

    def submit(rank: int) -> list[str]:
        handles = [
            rt.allreduce_async(np.ones(2)),
            rt.allreduce_async(np.ones(2 + rank)),
            rt.allreduce_async(np.ones(1)),
        ]
        assert rt.synchronize(handles[0]).tolist() == [1, 1]
        messages = []
        for handle in handles[1:]:
            with pytest.raises(rt.errors.MismatchError) as caught:
                rt.synchronize(handle)
            messages.append(str(caught.value))
        return messages

    with world_of(2, transport) as world:
        for messages in world.run(submit):
            assert messages == ["allreduce #2: shape is (2,) on rank 0 and (3,) on rank 1; " + BUILD] * 2


BUILD = "every rank must build the same model"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_outside_the_set_learns_of_the_mismatch(transport: str) -> None:
    """A mismatch inside a process set is the end of the world's collectives, on ranks outside the set too."""

    def differ(rank: int) -> str:
        ends = rt.add_process_set([0, 2])
        if rank != 1:
            with pytest.raises(rt.errors.MismatchError):
                rt.allreduce(np.ones(1 + rank), process_set=ends)
        world.meet()
        with pytest.raises(rt.errors.MismatchError) as caught:
            rt.barrier()
        return str(caught.value)

    with world_of(3, transport) as world:
        assert world.run(differ) == [f"allreduce #1: shape is (1,) on rank 0 and (3,) on rank 2; {BUILD}"] * 3


# What one rank can see for itself, before it talks to anyone.
WRONG_ARGUMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "dtype": (
        lambda: rt.allreduce(np.ones(2, np.complex64)),
        "dtype complex64 can't be exchanged; expected one of",
    ),
    "average-of-integers": (
        lambda: rt.allreduce(np.ones(2, int)),
        "Average of int64 would need rounding; pass op=",
    ),
    "op": (
        lambda: rt.allreduce(np.ones(2), "sum"),
        "op is 'sum'; expected Sum, Average, Adasum, Min, Max or Product",
    ),
    "root": (lambda: rt.broadcast(np.ones(2), 5), "root_rank is 5; expected one of the ranks [0]"),
    "read-only": (lambda: rt.allreduce_(np.broadcast_to(np.ones(1), 3)), "this array is read-only; pass a copy"),
    "not-an-array": (
        lambda: rt.broadcast_([1.0], 0),
        "broadcast_ changes its argument and needs a numpy array; got list",
    ),
    "masked": (
        lambda: rt.allreduce(np.ma.array([1.0, 2.0], mask=[0, 1])),
        "masked arrays are not supported",
    ),
    "masked-in-place": (
        lambda: rt.allreduce_(np.ma.array([1.0, 2.0], mask=[0, 1])),
        "masked arrays are not supported",
    ),
    "splits": (
        lambda: rt.alltoall(np.ones(3), [2]),
        "alltoall splits are [2]; expected 1 number of rows, which add up to 3",
    ),
    "splits-of-parts": (
        lambda: rt.alltoall(np.ones(3), [3.5]),
        "alltoall splits are [3.5]; expected 1 number of rows, which add up to 3",
    ),
    "bounds": (
        lambda: group_of().all_gather(np.ones(3), [0, 2]).wait(),
        "bounds are [0, 2]; expected 2 offsets from 0 to 3",
    ),
    "not-flat": (
        lambda: group_of().all_reduce(np.ones((2, 2))).wait(),
        "needs a 1-d contiguous array in native byte order",
    ),
    "set-twice": (
        lambda: rt.ProcessSet([0, 0]),
        "process set [0, 0]: a rank is listed twice; expected each rank once",
    ),
    "set-range": (
        lambda: rt.add_process_set([0, 1]),
        "process set [0, 1]: expected one or more ranks from 0 to 0",
    ),
    "set-not-added": (
        lambda: rt.barrier(rt.ProcessSet([0])),
        "ranks=[0]) is not in use; pass this process set to init() or add_process_set() on all ranks first",
    ),
    "name": (
        lambda: rt.allreduce(np.ones(3), name=5),
        "a tensor's name is 5 (int); expected a text or None",
    ),
    "object": (
        lambda: rt.broadcast_object({"model": [object()]}),
        "value['model'][0] is of type object, which is not sent between ranks without allow_pickle=True",
    ),
}


@pytest.mark.parametrize(("call", "expected"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named(call: Callable[[], object], expected: str) -> None:
    """The message has the value and what was expected."""
    with world_of(1) as world:
        (error,) = world.errors(lambda _: call())
    assert isinstance(error, rt.errors.ConfigurationError), error
    assert expected in str(error)


def test_a_collective_without_init_says_so() -> None:
    """Before init, and after shutdown, a collective names the way out."""
    with pytest.raises(rt.errors.NotInitializedError, match=r"call ringtrain.init\(\) first"):
        rt.allreduce(np.ones(2))
    rt.init()
    assert (rt.rank(), rt.size(), rt.is_initialized()) == (0, 1, True)
    rt.shutdown()
    assert not rt.is_initialized()
    with pytest.raises(rt.errors.NotInitializedError):
        rt.size()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_optimizers_of_different_models_name_the_parameter(transport: str) -> None:
    """Before memory is taken: where ranks share it, sizes that differ would be told in its place."""

    def build(rank: int) -> None:
        HostOptimizer({"a": np.zeros(3, np.float32), "w": np.zeros(4 + rank, np.float32)}, SGD(lr=0.1))

    message = f'parameter "w" is (5,) float32 on rank 1, but (4,) float32 on rank 0; {BUILD}'
    with world_of(2, transport) as world:
        assert [str(error) for error in world.errors(build)] == [message] * 2


@pytest.mark.parametrize("transport", ["memory", "shm"])
def test_state_dict_of_one_rank_alone_is_an_error(transport: str) -> None:
    """Also where no array would travel: plain SGD has no state, and every rank has all weights."""

    def work(rank: int) -> None:
        opt = HostOptimizer({"w": np.zeros(3, np.float32)}, SGD(lr=0.1))
        if rank == 0:
            opt.state_dict(root=0)
        rt.barrier()

    with world_of(2, transport) as world:
        all_raise(world.errors(work), MismatchError, "every rank must call the same collectives in the same order")


def test_state_dict_of_ranks_at_different_updates_is_an_error() -> None:
    """The message names both values."""

    def work(rank: int) -> None:
        HostOptimizer({"w": np.zeros(3, np.float32)}, SGD(lr=0.1)).state_dict(root=rank)

    with world_of(2) as world:
        all_raise(world.errors(work), MismatchError, "root is 0 on rank 0 and 1 on rank 1")


@pytest.mark.parametrize("transport", ["memory", "shm"])
@pytest.mark.parametrize("roots", [(0, 0), (None, 1), (0, 1)])
def test_state_dict_with_other_arguments_leaves_nothing_behind(transport: str, roots: tuple[int | None, int]) -> None:
    """Also where one rank keeps the state and the other does not: nobody waits for arrays that the other one does
    not send, and the call that is right goes on."""

    def work(rank: int) -> tuple[str, int]:
        opt = HostOptimizer({"w": np.zeros(3, np.float32)}, AdamW(lr=0.1))
        with pytest.raises(MismatchError) as error:
            opt.state_dict(root=roots[rank], error_feedback=not rank)
        rt.barrier()
        return str(error.value), len(opt.state_dict(root=0))

    with world_of(2, transport, timeout_s=10) as world:
        (said, whole), (also_said, nothing) = world.run(work)
    assert said == also_said
    assert "on rank 0 and" in said
    assert (whole > 0, nothing) == (True, 0)


@pytest.mark.parametrize("passes", [(2, 3), (2, 1)], ids=["both-changed", "one-changed"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_take_other_numbers_of_micro_steps_are_told(transport: str, passes: tuple[int, int]) -> None:
    """Each would divide its part of the sum by another number, and all would train with a wrong mean."""

    def train(rank: int) -> None:
        opt = HostOptimizer({"w": np.zeros(4)}, SGD(1.0))
        opt.set_backward_passes_per_step(passes[rank])
        for _ in range(passes[rank]):
            opt.submit("w", np.ones(4))
            opt.step()
        raise AssertionError(opt.weights["w"])

    with world_of(2, transport, timeout_s=10) as world:
        for error in world.errors(train):
            assert isinstance(error, MismatchError), error
            if passes[1] > 1:
                assert re.search("passes=[23] on rank [01], but passes=[23] on rank [01]; every rank", str(error))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_ranks_tell_each_other_is_never_taken_for_something_else(transport: str) -> None:
    """Rank 0 alone saves a checkpoint: its step is no rank's wish to stop."""

    def work(rank: int) -> None:
        group = group_of()
        said = group.allgather_object(False, "StopRequest") if rank else group.allgather_object(7, "checkpoint saved")
        raise AssertionError(said)

    with world_of(2, transport) as world:
        all_raise(world.errors(work), MismatchError, "checkpoint saved", "StopRequest")
