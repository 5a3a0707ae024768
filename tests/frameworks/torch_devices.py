"""Checks of RINGTRAIN_TRANSPORT=torch, over gloo: run on every rank of a world whose reductions take it."""

import os
from collections.abc import Callable

import torch

os.environ["RINGTRAIN_TRANSPORT"] = "torch"  # before the world is met, which the next import does

from frameworks.torch_values import RANK, SIZE

import ringtrain.torch as hvd
from ringtrain.process_groups.context import current
from ringtrain.torch.device_groups import DeviceGroups


def groups_in_use() -> list[int]:
    return current().attached(DeviceGroups, DeviceGroups).in_use()


def check_reductions_went_through_torch_distributed():
    """The group is ours: torch's own default group was not touched."""
    hvd.allreduce(torch.ones(3))
    assert groups_in_use() == ([0] if SIZE > 1 else [])
    assert not torch.distributed.is_initialized()


def check_an_optimizer_trains_as_one_process_on_all_data():
    """Integers as floats, so that the order in which the library adds does not show."""
    net = torch.nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.fill_(0.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), op=hvd.Sum
    )
    for _ in range(12):
        optimizer.zero_grad()
        net(torch.full((1, 2), float(RANK + 1))).sum().backward()
        optimizer.step()
    gradient = sum(range(1, SIZE + 1))
    assert net.weight.tolist() == [[1.0 - 12 * gradient] * 2]
    assert net.bias.tolist() == [-12.0 * SIZE]


def check_what_takes_the_group():
    """All kinds do where tensors hold floats or only move; averages of integers, Adasum and scaled integers go as
    arrays. The same on all ranks, and counted by the calls to the library."""
    ones = torch.ones(2 * SIZE, dtype=torch.int32)
    took = [
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Max),
        lambda: hvd.allreduce(ones, op=hvd.Sum),
        lambda: hvd.broadcast(ones > 0, 0),
        lambda: hvd.allgather(ones),
        lambda: hvd.alltoall(ones),
        lambda: hvd.reducescatter(torch.ones(SIZE, dtype=torch.bfloat16)),
    ]
    others = [
        lambda: hvd.allreduce(ones),
        lambda: hvd.allreduce(ones, op=hvd.Sum, prescale_factor=2.0),
        lambda: hvd.reducescatter(ones),
        lambda: hvd.allgather(torch.ones(0, 2)),
        lambda: hvd.alltoall(torch.ones(0)),
        lambda: hvd.barrier(),
    ]
    calls = [_calls_of(make) for make in took + others]
    assert calls == [int(SIZE > 1)] * len(took) + [0] * len(others)


def _calls_of(make: Callable[[], object]) -> int:
    """How many collectives of the library `make` costs."""
    if SIZE == 1:
        make()
        return 0
    hvd.allreduce(torch.ones(1))
    group = current().attached(DeviceGroups, DeviceGroups)._groups[0, torch.ones(1).device]
    assert group is not None
    before = group._calls._sequence
    make()
    return group._calls._sequence - before


def check_the_group_of_a_removed_set_is_destroyed():
    """The one of all ranks stays."""
    ends = hvd.add_process_set(sorted({0, SIZE - 1}))
    if ends.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=ends).tolist() == [len(ends.ranks)]
    number = ends.process_set_id
    assert (number in groups_in_use()) == (RANK in (0, SIZE - 1) and SIZE > 1)
    assert hvd.remove_process_set(ends)
    assert number not in groups_in_use()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [SIZE]
