"""Checks of RINGTRAIN_TRANSPORT=torch, over gloo: run on every rank of a world whose reductions take it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch_values import RANK, SIZE

import ringtrain.torch as hvd
from ringtrain._core.process_groups.context import current
from ringtrain.optim import LAMB, SGD, AdamW
from ringtrain_torch.device_groups import TorchDeviceGroups

RUN_IN = {
    "framework": "ringtrain.torch",
    "ranks": [3],
    "env": {"RINGTRAIN_TRANSPORT": "torch"},
    "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
}


def groups_in_use() -> list[int]:
    return current().attached(TorchDeviceGroups, TorchDeviceGroups).in_use()


def test_reductions_went_through_torch_distributed():
    """The group is ours: torch's own default group was not touched."""
    hvd.allreduce(torch.ones(3))
    assert groups_in_use() == ([0] if SIZE > 1 else [])
    assert not torch.distributed.is_initialized()


def test_an_optimizer_trains_as_one_process_on_all_data():
    """Integers as floats, so that the order in which the library adds does not show."""
    net = torch.nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.fill_(0.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), op=hvd.Sum)
    for _ in range(12):
        optimizer.zero_grad()
        net(torch.full((1, 2), float(RANK + 1))).sum().backward()
        optimizer.step()
    gradient = sum(range(1, SIZE + 1))
    assert net.weight.tolist() == [[1.0 - 12 * gradient] * 2]
    assert net.bias.tolist() == [-12.0 * SIZE]


def test_what_takes_the_group():
    """All kinds use the group if tensors contain floats or are only moved; averages of integers, Adasum, scaled
    integers, and Min and Max of floats use arrays. Ranks agree; the test counts the library's calls."""
    ones = torch.ones(2 * SIZE, dtype=torch.int32)
    took = [
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Product),
        lambda: hvd.allreduce(ones, op=hvd.Sum),
        lambda: hvd.allreduce(ones, op=hvd.Max),
        lambda: hvd.broadcast(ones > 0, 0),
        lambda: hvd.allgather(ones),
        lambda: hvd.alltoall(ones),
        lambda: hvd.reducescatter(torch.ones(SIZE, dtype=torch.bfloat16)),
    ]
    others = [
        lambda: hvd.allreduce(ones),
        lambda: hvd.allreduce(ones, op=hvd.Sum, prescale_factor=2.0),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Max),
        lambda: hvd.reducescatter(ones),
        lambda: hvd.allgather(torch.ones(0, 2)),
        lambda: hvd.alltoall(torch.ones(0)),
        lambda: hvd.barrier(),
    ]
    calls = [_calls_of(make) for make in took + others]
    assert calls == [int(SIZE > 1)] * len(took) + [0] * len(others)


def _calls_of(make: Callable[[], object]) -> int:
    """Return the number of calls of the library's collectives that `make` causes."""
    if SIZE == 1:
        make()
        return 0
    hvd.allreduce(torch.ones(1))
    group = current().attached(TorchDeviceGroups, TorchDeviceGroups)._groups[0, torch.ones(1).device]
    before = group._calls._sequence
    make()
    return group._calls._sequence - before


def test_the_group_of_a_removed_set_is_destroyed():
    """The one of all ranks stays."""
    ends = hvd.add_process_set(sorted({0, SIZE - 1}))
    if ends.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=ends).tolist() == [len(ends.ranks)]
    number = ends.process_set_id
    assert (number in groups_in_use()) == (RANK in (0, SIZE - 1) and SIZE > 1)
    assert hvd.remove_process_set(ends)
    assert number not in groups_in_use()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [SIZE]


RULES = {"sgd": SGD(0.1, momentum=0.9), "adamw": AdamW(1e-2), "lamb": LAMB(1e-2)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 3},
    "clipped": {"clip_norm": 0.5},
    "a local bias": {"local": ("2.bias",)},
    "small buckets": {"bucket_bytes": 64},
}


def trained(dtype: torch.dtype, rule: Any, options: dict[str, Any]) -> tuple[hvd.HostOptimizer, torch.nn.Module]:
    """Return a model after six updates, with different data on each rank."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(9, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5)).to(dtype)
    optimizer = hvd.HostOptimizer(net, rule, **options)
    torch.manual_seed(100 + RANK)
    for _ in range(6 * options.get("accumulate", 1)):
        net(torch.randn(4, 9, dtype=dtype)).square().sum().backward()
        optimizer.step()
    optimizer.synchronize()
    return optimizer, net


def test_the_host_optimizer_of_a_node_has_the_bits_of_one_that_takes_every_gradient():
    """`check_finite` looks at every gradient on the host."""
    cases = [(rule, OPTIONS["plain"], torch.float64) for rule in RULES.values()]
    cases += [(RULES["adamw"], options, torch.float32) for options in OPTIONS.values()]
    for rule, options, dtype in [*cases, (RULES["lamb"], OPTIONS["small buckets"], torch.float32)]:
        optimizer, net = trained(dtype, rule, options)
        whole, reference = trained(dtype, rule, {**options, "check_finite": True})
        assert (optimizer.takes_node_sums, whole.takes_node_sums) == (SIZE > 1, False)
        for (name, ours), theirs in zip(net.state_dict().items(), reference.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs), (rule, options, dtype, name)
        for one in (optimizer, whole):
            one.close()


def test_only_a_share_of_the_sum_comes_to_the_host():
    """The host receives the part that this rank updates, and nothing of the other ranks' shards."""
    optimizer, _ = trained(torch.float32, RULES["sgd"], {})
    context = optimizer._host._cut.context
    for bucket in context.layout.buckets:
        gradients, own = context.arenas.gradients(bucket), context.arenas.owned(bucket)
        assert np.count_nonzero(gradients[own])
        assert np.count_nonzero(gradients) == np.count_nonzero(gradients[own])
    optimizer.close()


def test_half_types_are_summed_in_float32_by_a_node():
    """Rounded once, as the host does it; over micro-steps the host rounds before as well."""
    for dtype in (torch.float16, torch.bfloat16):
        optimizer, net = trained(dtype, RULES["sgd"], {})
        whole, reference = trained(dtype, RULES["sgd"], {"check_finite": True})
        for ours, theirs in zip(net.state_dict().values(), reference.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs)
        for one in (optimizer, whole):
            one.close()


def test_what_is_saved_of_node_sums_is_whole():
    """Every rank saves the whole state, and an optimizer without node sums loads it."""
    optimizer, net = trained(torch.float32, RULES["adamw"], {})
    whole, reference = trained(torch.float32, RULES["sgd"], {"check_finite": True})
    whole.close()
    other = hvd.HostOptimizer(reference, RULES["adamw"], check_finite=True)
    reference.load_state_dict(net.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for name, param in net.named_parameters():
        assert torch.equal(param, dict(reference.named_parameters())[name])
    optimizer.load_state_dict(other.state_dict())
    for one in (optimizer, other):
        one.close()


def test_a_set_s_host_optimizer_takes_the_sums_of_its_ranks():
    """Integers are sent as floats; ranks outside the set do not participate."""
    ends = hvd.add_process_set(sorted({0, SIZE - 1}))
    if ends.included():
        net = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for param in net.parameters():
                param.fill_(0.0)
        optimizer = hvd.HostOptimizer(net, SGD(1.0), process_set=ends)
        net(torch.full((1, 3), float(RANK + 1))).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        assert optimizer.takes_node_sums == (SIZE > 1)
        mean = sum(rank + 1 for rank in ends.ranks) / len(ends.ranks)
        assert net.weight.tolist() == [[-mean] * 3] * 2
        optimizer.close()
    hvd.remove_process_set(ends)
