"""Checks that ranks of ringtrain.torch.DistributedOptimizer compare their weights, on every rank of a world."""

import functools

import pytest
import torch
from torch import nn
from torch_training import RANK, SIZE, batches, model, train

import ringtrain.torch as hvd
from ringtrain.errors import MismatchError, StateCorrupt
from ringtrain.optim.memory_check import EVERY
from ringtrain.optim.replicas import PARTS, OptimizerReplicas
from ringtrain_torch.replica import sum_of_bits, torch_replica_of

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": ["test_one_flipped_bit_is_found"],
    },
]

ODD = SIZE - 1
MOST_UPDATES = PARTS * EVERY + EVERY + 1
DATA = batches(RANK, 3 + MOST_UPDATES)


def optimizer_of(net: nn.Module, rate: float = 0.01, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=rate), net.named_parameters(), **options)


def names_the_odd_rank(trains, words: str) -> None:
    """`trains` raises on every rank, by name, within the bound; two ranks can't know which of them is wrong."""
    if SIZE == 1:
        trains()
        return
    with pytest.raises(StateCorrupt, match=words) as raised:
        trains()
    assert raised.value.ranks == ((ODD,) if SIZE > 2 else (0, 1))


def test_one_flipped_bit_is_found():
    """The bit is found in any layer, also if Adasum combines the steps of the ranks."""
    for layer, options in ((0, {}), (2, {}), (4, {}), (4, {"op": hvd.Adasum})):
        if options and SIZE & (SIZE - 1):
            continue  # Adasum wants a power of two
        net = model()
        optimizer = optimizer_of(net, **options)
        train(net, optimizer, DATA[:3])
        if RANK == ODD:
            net[layer].weight.data.view(-1).view(torch.int32)[3] ^= 1
        names_the_odd_rank(
            lambda net=net, optimizer=optimizer: train(net, optimizer, DATA[3:]), "before update .* weights"
        )


def test_a_wrong_load_is_found():
    """A rank that has loaded another model raises an error at its second update."""
    net = model(seed=int(RANK == ODD))
    names_the_odd_rank(lambda: train(net, optimizer_of(net), DATA[:2]), "before update 2 .* call broadcast_parameters")


def test_a_wrong_rate_is_found():
    """One rank has set another rate for one of two groups after the first steps."""
    net = model()
    groups = [{"params": net[0].parameters()}, {"params": [*net[2].parameters(), *net[4].parameters()]}]
    plain = torch.optim.SGD(groups, lr=0.01)
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    train(net, optimizer, DATA[:3])
    if RANK == ODD:
        plain.param_groups[1]["lr"] = 0.02
    if SIZE == 1:
        return
    with pytest.raises(MismatchError, match=rf"\[0.01, 0.01\] on rank 0 and \[0.01, 0.02\] on rank {ODD}"):
        train(net, optimizer, DATA[3 : 5 + EVERY])


def test_what_is_a_ranks_own_is_not_compared():
    """Buffers, frozen parameters, and a model that a process set of one rank trains."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2), nn.Linear(2, 2))
    torch.manual_seed(3)
    for layer in (0, 2):
        nn.init.normal_(net[layer].weight)
        nn.init.zeros_(net[layer].bias)
    torch.manual_seed(RANK)
    nn.init.normal_(net[3].weight)
    nn.init.normal_(net[3].bias)
    net[3].requires_grad_(False)
    train(net, optimizer_of(net), DATA)
    if SIZE > 1:
        alone = hvd.add_process_set([ODD])
        other = model(seed=RANK)
        if RANK == ODD:
            train(other, optimizer_of(other, 0.5, process_set=alone), DATA)
        hvd.remove_process_set(alone)


def test_weights_that_are_sent_after_the_first_step_are_alike():
    """Scripts of Horovod broadcast after the first step, so that the optimizer has its state."""
    net = model(seed=RANK)
    optimizer = optimizer_of(net)
    train(net, optimizer, DATA[:1])
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    train(net, optimizer, DATA[1:])


def test_ranks_that_have_joined_are_not_compared():
    """Ranks with less data join, and all count their updates anew behind that."""
    for number in (30, 45):
        net = model()
        optimizer = optimizer_of(net)
        train(net, optimizer, DATA[: number + RANK])
        hvd.join()
        hvd.broadcast_parameters(net.state_dict(), root_rank=SIZE - 1)
        train(net, optimizer, DATA)


def test_a_step_that_fails_leaves_the_next_optimizer_alone():
    """Its comparison may still be in progress when another optimizer with the same names begins one."""
    look = functools.partial(torch_replica_of, {}, [])
    failed, later = (OptimizerReplicas("gradient.weight", hvd.global_process_set) for _ in range(2))
    if RANK:
        hvd.barrier()  # rank 0 has begun both
    with pytest.raises(KeyError), failed.compared(look):
        raise KeyError
    with later.compared(look):
        if RANK == 0:
            hvd.barrier()


def test_a_comparison_reads_a_part():
    """Each row is in one part, and of other memory than the host's the sum of the bits is what is compared."""
    net = nn.Sequential(nn.Conv2d(3, 17, 3).to(memory_format=torch.channels_last), nn.Linear(40, 10))
    names = {param: name for name, param in net.named_parameters()}
    before = [torch_replica_of(names, [], part).weights for part in range(PARTS)]
    for param in names:
        for row in range(param.shape[0]):
            first = (row, *[0] * (param.dim() - 1))
            whole = sum_of_bits([param.data])
            param.data[first].neg_()
            assert sum_of_bits([param.data]) != whole
            after = [torch_replica_of(names, [], part).weights for part in range(PARTS)]
            assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
            param.data[first].neg_()
