"""Checks of ringtrain.torch other than collectives: process sets, join, objects, queries, timeline, shutdown."""

import json
import os
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch_values import RANK, RANKS, SIZE, error_of, numbers, same, value

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.optim import SGD

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "name": "over-torch",
        "ranks": [3],
        "env": {"RINGTRAIN_TRANSPORT": "torch"},
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
    },
]


def test_names_in_different_orders():
    """Each rank submits twelve tensors in a different order; each result belongs to its name."""
    order = np.random.default_rng(RANK).permutation(12)
    for _ in range(3):
        handles = {
            int(i): hvd.allreduce_async(torch.full((3,), float(i + RANK)), name=f"t{i}", op=hvd.Sum) for i in order
        }
        for i, handle in handles.items():
            same(hvd.synchronize(handle), np.full(3, i * SIZE + sum(RANKS), float), i)


def test_more_names_than_one_round_has_room_for():
    """Names that are new travel whole, and 300 of them are longer than what ranks exchange at once."""
    names = [f"a.rather.long.name.of.a.parameter.{index}" for index in range(300)]
    for _ in range(2):
        handles = [hvd.allreduce_async(torch.ones(1), name=name, op=hvd.Sum) for name in names]
        assert {hvd.synchronize(handle).item() for handle in handles} == {SIZE}


def test_join_of_uneven_data():
    """Ranks that have joined count as zeros; all learn the last one."""
    for first in RANKS:
        steps = 1 if first == RANK else 3
        for step in range(steps):
            summed = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="uneven")
            expected = SIZE if step == 0 else SIZE - 1
            same(summed, np.full(2, float(expected)), (first, step))
            averaged = hvd.allreduce(torch.ones(2), name="uneven average")
            same(averaged, np.full(2, expected / SIZE), (first, step), "float32")
            several = [hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=f"uneven {i}") for i in range(3)]
            for handle in several:
                same(hvd.synchronize(handle), np.full(2, float(expected)), (first, step))
        last = hvd.join()
        assert last != first or SIZE == 1
        assert set(hvd.allgather_object(last)) == {last}


def test_join_forbids_what_needs_every_rank():
    if SIZE == 1:
        return
    if RANK > 0:
        for call in (
            lambda: hvd.allgather(torch.ones(2)),
            lambda: hvd.broadcast(torch.ones(2), 1),
            lambda: hvd.reducescatter(torch.ones(SIZE)),
            lambda: hvd.allreduce(torch.ones(2), op=hvd.Max),
        ):
            assert "rank 0 has called join()" in error_of(call)
    hvd.join()


def test_barrier():
    hvd.barrier()


def test_process_sets():
    if SIZE < 2:
        return
    even = hvd.add_process_set([rank for rank in RANKS if rank % 2 == 0])
    odd = hvd.add_process_set(hvd.ProcessSet([rank for rank in RANKS if rank % 2 == 1]))
    mine, other = (even, odd) if RANK % 2 == 0 else (odd, even)
    own = [rank for rank in RANKS if rank % 2 == RANK % 2]
    assert (mine.included(), mine.size(), mine.rank(), other.included()) == (
        True,
        len(own),
        own.index(RANK),
        False,
    )
    x = value(RANK, 2, "float32").requires_grad_()
    y = hvd.allreduce(x, op=hvd.Sum, process_set=mine)
    same(y, sum(numbers(value(rank, 2, "float32")) for rank in own), own)
    y.sum().backward()
    same(x.grad, np.full(tuple(x.shape), float(len(own))), own)
    same(hvd.broadcast(torch.tensor([float(RANK)]), own[-1], process_set=mine), np.array([float(own[-1])]), own)
    same(hvd.allgather(torch.tensor([RANK]), process_set=mine), np.array(own, float), own)
    same(hvd.reducescatter(torch.ones(len(own)), op=hvd.Sum, process_set=mine), np.array([float(len(own))]), own)
    same(hvd.alltoall(torch.full((len(own),), RANK), process_set=mine), np.array(own, float), own)
    both = [hvd.allreduce_async(torch.ones(1), op=hvd.Sum, process_set=s) for s in (mine, hvd.global_process_set)]
    assert [hvd.synchronize(handle).item() for handle in both] == [len(own), SIZE]
    hvd.barrier(mine)
    assert "is not a member" in error_of(lambda: hvd.allreduce(torch.ones(1), process_set=other))
    assert "exists already" in error_of(lambda: hvd.add_process_set(even.ranks))
    assert [hvd.remove_process_set(s) for s in (even, odd, even, hvd.global_process_set)] == [
        True,
        True,
        False,
        False,
    ]
    assert even.size() is None
    assert "is not in use" in error_of(lambda: hvd.allreduce(torch.ones(1), process_set=mine))


def test_one_world_for_all_modules():
    """A set or an operation of one module is that of the other."""
    for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product", "ProcessSet", "global_process_set"):
        assert getattr(hvd, name) is getattr(rt, name), name
    for make, give_up in ((rt, hvd), (hvd, rt)):
        ends = make.add_process_set(sorted({0, SIZE - 1}))
        if ends.included():
            count = len(ends.ranks)
            assert rt.allreduce(np.ones(1), rt.Sum, process_set=ends).tolist() == [count]
            assert hvd.allreduce(torch.ones(1), op=rt.Sum, process_set=ends).tolist() == [count]
        assert give_up.remove_process_set(ends)
        assert ends.process_set_id is None


def test_objects():
    state = {"step": RANK, "weights": torch.full((2,), float(RANK)), "names": ["a", ("b", None)]}
    received = hvd.broadcast_object(state, SIZE - 1)
    assert (received["step"], received["weights"].tolist(), received["names"]) == (
        SIZE - 1,
        [SIZE - 1.0] * 2,
        ["a", ("b", None)],
    )
    assert hvd.allgather_object({"rank": RANK}) == [{"rank": rank} for rank in RANKS]


def test_objects_of_every_plain_kind():
    """Values of numpy and Python arrive together with tensors, in containers of both."""
    value = {
        "array": np.arange(6).reshape(2, 3),
        "both": [np.float32(0.5), torch.ones(2, dtype=torch.bfloat16), {1, 2}, frozenset({"a"}), 1j],
        "state": OrderedDict(weight=torch.zeros(2), steps=np.int64(3)),
        "torch": (torch.float16, torch.Size([2, 3]), torch.nn.Parameter(torch.ones(1))),
        (1, 2): b"raw",
    }
    for got in (hvd.broadcast_object(value if RANK == 0 else None), *hvd.allgather_object(value)):
        assert repr(got) == repr(value)
    for got in hvd.allgather_object(nn.BatchNorm1d(3).state_dict()):
        assert isinstance(got, OrderedDict)
        nn.BatchNorm1d(3).load_state_dict(got)


def test_a_root_that_cannot_send():
    """Everyone raises at once, with its reason; what ranks mean differently has both values."""
    words = error_of(lambda: hvd.broadcast_object([1, Custom(0)] if RANK == 0 else None))
    assert "rank 0: the object can't be sent: value[1] is of type Custom" in words
    words = error_of(lambda: hvd.allgather_object(Custom(0) if RANK == SIZE - 1 else 1))
    assert f"rank {SIZE - 1}: the object can't be sent" in words
    if SIZE > 1:
        words = error_of(lambda: hvd.broadcast_object(1, allow_pickle=RANK == 0))
        assert "allow_pickle is True on rank 0 and False on rank 1" in words
    assert "expected one of" in error_of(lambda: hvd.broadcast_object(1, SIZE))


class Custom:
    def __init__(self, rank):
        self.rank = rank


def test_objects_never_unpickle_unasked():
    assert "allow_pickle" in error_of(lambda: hvd.allgather_object(Custom(RANK)))
    assert hvd.allgather_object(range(RANK + 1), allow_pickle=True) == [range(rank + 1) for rank in RANKS]


def test_queries():
    built = (
        hvd.mpi_built,
        hvd.gloo_built,
        hvd.nccl_built,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.cuda_built,
        hvd.rocm_built,
    )
    assert not any(query() for query in (*built, hvd.mpi_enabled, hvd.gloo_enabled, hvd.mpi_threads_supported))
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    assert 0 <= hvd.local_rank() < hvd.local_size() <= SIZE
    assert 0 <= hvd.cross_rank() < hvd.cross_size() <= SIZE


def test_timeline():
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        hvd.allreduce(torch.ones(3), name="traced")
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        events = [event for event in json.loads(path.read_text()) if event.get("cat") == "named"]
        spans = [event["name"] for event in events if event["ph"] == "X"]
        assert spans == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
        assert {event["tid"] for event in events} == {"allreduce.traced"}


def test_forward_passes_in_the_timeline():
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        model = torch.nn.Linear(3, 1)
        optimizer = hvd.HostOptimizer(model, SGD(lr=0.1))
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        spans = [event["cat"] for event in json.loads(path.read_text()) if event["ph"] == "X"]
        main = [category for category in spans if category in ("forward", "backward", "step")]
        assert main == ["forward", "backward", "step"] * 2


def test_steps_of_a_distributed_optimizer_in_the_timeline():
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/trace.json")
        model = torch.nn.Linear(3, 1)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        hvd.stop_timeline()
        path = Path(folder) / ("trace.json" if RANK == 0 else f"trace-rank{RANK}.json")
        spans = [event["name"] for event in json.loads(path.read_text()) if event.get("cat") in ("backward", "step")]
        assert spans == ["backward", "step 1", "backward", "step 2"] if SIZE > 1 else ["step 1", "step 2"]


def test_an_optimizer_in_the_next_world():
    """A step that was under way when the world was left is forgotten: nothing of it comes any more."""
    net, other = nn.Linear(2, 1), nn.Linear(2, 1)
    other.load_state_dict(net.state_dict())
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_parameters(other.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters())
    net(torch.ones(1, 2)).sum().backward()
    hvd.barrier()  # nobody leaves while another one is in the backward pass
    hvd.shutdown()
    hvd.init()
    optimizer.zero_grad()
    net(torch.full((1, 2), float(RANK))).sum().backward()
    optimizer.step()
    other(torch.full((1, 2), (SIZE - 1) / 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.5).step()
    assert torch.allclose(net.weight, other.weight)


def test_shutdown_and_init_again():
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert "init()" in error_of(lambda: hvd.allreduce(torch.ones(1)))
    for _ in range(2):
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == SIZE
        hvd.shutdown()


def test_a_world_that_the_other_module_has_made():
    """`ringtrain.init()` makes the one world; `ringtrain.torch.init()` then adds its sets, once."""
    hvd.shutdown()
    rt.init()
    assert hvd.is_initialized()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == SIZE
    assert hvd.is_homogeneous()
    if RANK == 0:
        hvd.init()  # a library of one rank may do so
    first = hvd.ProcessSet([0])
    for _ in range(2):
        hvd.init(process_sets=[first, hvd.global_process_set])
        assert (first.process_set_id, first.size()) == (1, 1)
    assert "exists already" in error_of(lambda: hvd.init(process_sets=[hvd.ProcessSet([0])]))
    rt.shutdown()
    assert first.process_set_id is None
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1
    hvd.shutdown()


def test_a_timeline_in_the_place_of_that_of_the_environment():
    """`start_timeline` ends the file of RINGTRAIN_TIMELINE, which has what came before."""
    hvd.shutdown()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RINGTRAIN_TIMELINE"] = f"{folder}/environment.json"
        try:
            hvd.init()
            hvd.allreduce(torch.ones(1), name="before")
            hvd.start_timeline(f"{folder}/trace.json")
            hvd.allreduce(torch.ones(1), name="during")
            hvd.stop_timeline()
            hvd.allreduce(torch.ones(1), name="after")
            hvd.shutdown()
        finally:
            del os.environ["RINGTRAIN_TIMELINE"]
        trace = Path(folder, "trace.json" if RANK == 0 else f"trace-rank{RANK}.json").read_text()
        assert traced(trace) == {"allreduce.during"}
        assert traced(Path(folder, "environment.json").read_text()) == {"allreduce.before"}


def traced(text):
    return {event["args"]["tensor"] for event in json.loads(text) if event.get("cat") == "named"}
