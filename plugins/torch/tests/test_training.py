"""Checks of training with ringtrain.torch, run on every rank of a world.

The reference is one process on the pooled batch, computed on every rank without the others.
"""

import copy
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_training import (
    RANK,
    SIZE,
    TORCH_RULES,
    agree,
    batches,
    distributed,
    model,
    reference,
    same_everywhere,
    train,
)

import ringtrain.torch as hvd
from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.checkpoint.format import read_state, split, write_state
from ringtrain.optim import SGD, Adam, AdamW

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

HOST_RULES = {
    "sgd": SGD(lr=0.1),
    "momentum": SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": Adam(lr=1e-2),
    "adamw": AdamW(lr=1e-2, weight_decay=0.01),
}


def test_distributed_optimizer_trains_like_one_process():
    for rule in TORCH_RULES:
        net = model()
        train(net, distributed(net, rule), batches(RANK))
        agree(net, reference(rule))
        same_everywhere(net)


def test_host_optimizer_trains_like_one_process():
    for rule, host_rule in HOST_RULES.items():
        for overlap in (True, False):
            net = model()
            optimizer = hvd.HostOptimizer(net, host_rule, overlap=overlap, bucket_bytes=200)
            train(net, optimizer, batches(RANK))
            agree(net, reference(rule))
            same_everywhere(net)
            optimizer.close()


def test_host_optimizer_starts_from_rank_0():
    net = model(seed=RANK)
    optimizer = hvd.HostOptimizer(net, SGD(lr=0.1))
    train(net, optimizer, batches(RANK))
    agree(net, reference("sgd"))
    optimizer.close()


def test_host_optimizer_unused_parameters_and_accumulation():
    net = nn.ModuleDict({"used": nn.Linear(6, 2), "unused": nn.Linear(6, 2)})
    optimizer = hvd.HostOptimizer(net, SGD(lr=0.1), accumulate=2)
    before = net["unused"].weight.clone(), net["used"].weight.clone()
    for expected, (x, y) in zip([False, True, False, True], batches(RANK, 4), strict=True):
        nn.functional.mse_loss(net["used"](x), y).backward()
        assert optimizer.step() is expected
        assert all(param.grad is None for param in net["used"].parameters())
    optimizer.synchronize()
    assert torch.equal(net["unused"].weight, before[0])
    assert not torch.equal(net["used"].weight, before[1])
    same_everywhere(net)
    optimizer.close()


def test_host_optimizer_state_continues():
    data = batches(RANK, 10)
    whole = train(net := model(), hvd.HostOptimizer(net, Adam(lr=1e-2)), data)
    first = model()
    optimizer = hvd.HostOptimizer(first, Adam(lr=1e-2))
    train(first, optimizer, data[:5])
    state = optimizer.state_dict()
    second = model(seed=7)
    resumed = hvd.HostOptimizer(second, Adam(lr=1e-2))
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(state)
    assert resumed.updates == 5
    agree(train(second, resumed, data[5:]), whole, 0)


def test_host_optimizer_goes_back_and_on_in_another_world():
    """A step that is missing on one rank is undone; the model has the same parameters in other memory."""
    data = batches(RANK, 10)
    whole = train(net := model(), hvd.HostOptimizer(net, Adam(lr=1e-2)), data)
    part = train(net := model(), hvd.HostOptimizer(net, Adam(lr=1e-2)), data[:4])
    resumed = model()
    optimizer = hvd.HostOptimizer(resumed, Adam(lr=1e-2), elastic=True, bucket_bytes=200)
    train(resumed, optimizer, data[:5])
    params = list(resumed.parameters())
    assert optimizer.rollback(4) == optimizer.updates == 4
    optimizer.reform(range(SIZE))
    agree(resumed, part, 0)
    assert all(a is b for a, b in zip(resumed.parameters(), params, strict=True))
    agree(train(resumed, optimizer, data[4:]), whole, 0)
    same_everywhere(resumed)


def test_host_optimizer_state_is_sharded():
    net = model()
    optimizer = hvd.HostOptimizer(net, Adam(lr=1e-2))
    elements = sum(param.numel() for param in net.parameters())
    whole = 2 * 4 * elements
    # Shards are cut between segments of 128 elements: with so few of them the parts are not even.
    assert abs(optimizer.state_bytes - whole / SIZE) <= 2 * 4 * 128
    optimizer.close()


def test_host_optimizer_errors():
    frozen = model()
    for param in frozen.parameters():
        param.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        hvd.HostOptimizer(frozen, SGD(lr=0.1))
    with pytest.raises(ValueError, match="meta device"):
        hvd.HostOptimizer(nn.Linear(2, 2, device="meta"), SGD(lr=0.1))


def test_host_optimizer_names_usual_mistakes():
    """Each gets the way out in place of Python's or torch's error."""
    made = lambda: hvd.HostOptimizer(model(), SGD(lr=0.1))  # noqa: E731
    for call, words in (
        (
            lambda: hvd.HostOptimizer(model(), TORCH_RULES["adamw"]([torch.ones(1)])),
            r"pass torch's optimizer first: HostOptimizer\(optimizer, model\)",
        ),
        (lambda: hvd.HostOptimizer(model(), AdamW), r"rule is the class .*AdamW; expected an instance"),
        (
            lambda: hvd.HostOptimizer(model().parameters(), SGD(lr=0.1)),
            r"was given a generator; expected an optimizer",
        ),
        (
            lambda: hvd.HostOptimizer(np.zeros(3), SGD(lr=0.1)),
            r"was given a numpy\.ndarray; expected an optimizer",
        ),
        (lambda: hvd.HostOptimizer(made(), model()), r"HostOptimizer, which reduces gradients itself"),
        (lambda: copy.deepcopy(made()), r"can't be pickled or copied.*save state_dict\(\)"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()


def test_host_optimizer_names_a_parameter_that_was_replaced():
    """The error is raised also after steps that trained the parameter, and if another one is never used."""
    net = model()
    net.unused = nn.Linear(1, 1)
    layers, (x, y) = nn.Sequential(*list(net)[:5]), batches(RANK, 1)[0]
    optimizer = hvd.HostOptimizer(net, SGD(lr=0.1))
    for _ in range(2):
        nn.functional.mse_loss(layers(x), y).backward()
        optimizer.step()
    net[0].weight = nn.Parameter(torch.ones(16, 6))
    nn.functional.mse_loss(layers(x), y).backward()
    with pytest.raises(ValueError, match=r"parameter '0\.weight' was replaced .* create the HostOptimizer last"):
        optimizer.step()


def test_host_optimizer_state_is_saved_in_parts():
    """Each rank's goes below a URI, and a model in another process goes on from all of them."""
    net = nn.Linear(300, 20)
    optimizer = hvd.HostOptimizer(net, Adam(lr=1e-2))
    net(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        uri = "file://" + hvd.broadcast_object(folder)
        with ShardedCheckpoints(uri) as checkpoints:
            checkpoints.save(1, {"optimizer": optimizer.shard_dict()})
            other = nn.Linear(300, 20)
            resumed = hvd.HostOptimizer(other, Adam(lr=1e-2))
            checkpoints.latest(lambda state: resumed.load_state_dict(state["optimizer"]))
        hvd.barrier()
    assert resumed.updates == 1
    assert torch.equal(other.weight, net.weight)
    moments = resumed.state_dict()["state"]
    for index, slots in optimizer.state_dict()["state"].items():
        for slot, tensor in slots.items():
            assert torch.equal(moments[index][slot], tensor), (index, slot)


def test_host_optimizer_state_is_saved_by_torch():
    """`torch.load` takes it by default, and so do `Checkpoints`; states of arrays load as ever."""
    net = nn.Linear(3, 2, dtype=torch.bfloat16)
    optimizer = hvd.HostOptimizer(net, Adam(lr=1e-2))
    net(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        with path.open("wb") as written:
            write_state(written, 1, state)
        arrays = read_state(path)
    for saved in (state, arrays):
        other = nn.Linear(3, 2, dtype=torch.bfloat16)
        resumed = hvd.HostOptimizer(other, Adam(lr=1e-2))
        other.load_state_dict(net.state_dict())
        resumed.load_state_dict(saved)
        assert resumed.updates == 1
        for one, trained in ((net, optimizer), (other, resumed)):
            one(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
            trained.step()
        assert torch.equal(other.weight, net.weight)
        net.load_state_dict(other.state_dict())
        optimizer.load_state_dict(state)


def test_checkpoints_take_tensors():
    """Parameters are saved bit by bit, too; tensors that are not dense raise an error."""
    kept = {
        "parameter": nn.Parameter(torch.tensor([1.5, -0.0])),
        "half": torch.tensor([3.140625, float("inf")], dtype=torch.bfloat16),
    }
    with tempfile.TemporaryFile() as file:
        write_state(file, 1, kept)
        with pytest.raises(ValueError, match=r"(?s)rare is Tensor .* expected dicts"):
            write_state(file, 1, {"rare": torch.ones(2).to_sparse()})
    arrays = split(kept)[1]
    assert [array.tobytes() for array in arrays.values()] == [
        np.array([1.5, -0.0], np.float32).tobytes(),
        kept["half"].view(torch.int16).numpy().tobytes(),
    ]


def test_broadcast_parameters():
    for given in (lambda net: net.state_dict(), lambda net: net.named_parameters(), lambda net: net.parameters()):
        net = model(seed=RANK + 1)
        hvd.broadcast_parameters(given(net), SIZE - 1)
        agree(net, model(seed=SIZE), 0)
    with pytest.raises(ValueError, match="expected a tensor"):
        hvd.broadcast_parameters({"a": 1.0}, 0)


def test_broadcast_optimizer_state():
    """Ranks without state, and with other options, get those of the root."""
    for rule in TORCH_RULES:
        net = model()
        optimizer = TORCH_RULES[rule](net.parameters())
        if RANK == SIZE - 1:
            train(net, optimizer, batches(RANK, 3))
            optimizer.param_groups[0]["lr"] = 0.25
        hvd.broadcast_parameters(net.state_dict(), SIZE - 1)
        hvd.broadcast_optimizer_state(optimizer, SIZE - 1)
        assert optimizer.param_groups[0]["lr"] == 0.25
        train(net, optimizer, batches(0, 3))
        same_everywhere(net)


def test_sync_batch_norm():
    """Output, gradients and running statistics are those of plain batch normalisation over the pooled batch."""
    for dim, make in ((2, nn.BatchNorm1d), (4, nn.BatchNorm2d)):
        ours, plain = hvd.SyncBatchNorm(3), make(3)
        inputs = [_images(rank, dim) for rank in range(SIZE)]
        x = inputs[RANK].clone().requires_grad_()
        every = torch.cat(inputs).requires_grad_()
        mine = slice(sum(len(i) for i in inputs[:RANK]), sum(len(i) for i in inputs[: RANK + 1]))
        for _ in range(2):
            y, expected = ours(x), plain(every)
            torch.testing.assert_close(y, expected[mine])
        (y * (inputs[RANK] + 1)).sum().backward()
        (expected * (torch.cat(inputs) + 1)).sum().backward()
        torch.testing.assert_close(x.grad, every.grad[mine], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), plain.weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.running_mean, plain.running_mean)
        torch.testing.assert_close(ours.running_var, plain.running_var)
        assert int(ours.num_batches_tracked) == 2
        torch.testing.assert_close(ours.eval()(x), plain.eval()(x))
    with pytest.raises(ValueError, match="expected"):
        hvd.SyncBatchNorm(3)(torch.ones(3))


def test_sync_batch_norm_of_a_half_type():
    """The output has the input's type and the precision of plain batch normalisation, far from zero too."""
    every = (torch.cat([_images(rank, 2) for rank in range(SIZE)]) * 0.1 + 30).bfloat16()
    first = sum(len(_images(rank, 2)) for rank in range(RANK))
    mine = slice(first, first + len(_images(RANK, 2)))
    torch.testing.assert_close(hvd.SyncBatchNorm(3)(every[mine]), nn.BatchNorm1d(3)(every)[mine])


def test_sync_batch_norm_of_batches_that_are_empty_on_all_ranks():
    """The running statistics do not change, as with plain batch normalisation."""
    norm = hvd.SyncBatchNorm(3)
    norm(torch.empty(0, 3)).sum().backward()
    assert norm.running_mean.tolist() == [0] * 3
    assert norm.running_var.tolist() == [1] * 3
    assert norm.weight.grad.tolist() == norm.bias.grad.tolist() == [0] * 3


def _images(rank: int, dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn((rank + 2, 3, *(5,) * (dim - 2)), generator=generator)
