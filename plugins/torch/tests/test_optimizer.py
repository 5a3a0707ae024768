"""Checks of the options of ringtrain.torch.DistributedOptimizer, run on every rank of a world.

What a script sees with no option of ours is in `test_scripts.py`.
"""

import gc
import os
import threading
import time
from pathlib import Path

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
    pooled,
    reference,
    same_everywhere,
    train,
)

import ringtrain.torch as hvd
from ringtrain.errors import MismatchError
from ringtrain.optim import SGD
from ringtrain.step_time import measured

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": [
            "test_closed_host_optimizers_give_everything_back",
            "test_hooks_of_a_step",
            "test_a_group_of_parameters_that_is_added_later",
            "test_adasum_optimizer",
        ],
    },
]


def in_buckets(net, **options):
    """An optimizer of which each layer's gradients leave during the backward pass, after two steps."""
    return distributed(net, groups=[list(layer.parameters()) for layer in net if list(layer.parameters())], **options)


def test_more_backward_passes_than_announced():
    """If it is so from the first step, gradients are summed as in torch; after gradients were submitted, it is
    refused."""
    net, other = model(), model()
    optimizer, plain = in_buckets(net), torch.optim.SGD(other.parameters(), lr=0.1)
    for step, ((x, y), (all_x, all_y)) in enumerate(zip(batches(RANK, 6), pooled(6), strict=True)):
        for one, inputs, targets in ((net, x, y), (other, all_x, all_y)):
            for _ in range(1 + step % 3):
                nn.functional.mse_loss(one(inputs), targets).backward()
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
    agree(net, other)
    if SIZE == 1:
        return
    net = model()
    optimizer = in_buckets(net)
    train(net, optimizer, batches(RANK, 2))
    x, y = batches(RANK, 1)[0]
    nn.functional.mse_loss(net(x), y).backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step = 1"):
        nn.functional.mse_loss(net(x), y).backward()
    with pytest.raises(ValueError, match="changed, replaced or set to None"):
        optimizer.step()  # the second pass has added to a gradient that was being reduced
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()


def test_gradients_that_are_dropped_while_they_are_reduced():
    """If all ranks drop them, the result is as with torch alone; if one rank steps on them, all ranks raise an
    error."""
    net, other = model(), model()
    optimizer, plain = in_buckets(net), torch.optim.SGD(other.parameters(), lr=0.1)
    for step, (own, everyone) in enumerate(zip(batches(RANK, 6), pooled(6), strict=True)):
        for one, optim, (x, y) in ((net, optimizer, own), (other, plain, everyone)):
            optim.zero_grad()
            nn.functional.mse_loss(one(x), y).backward()
            if step != 3:
                optim.step()
    agree(net, other)
    if SIZE == 1:
        return
    net = model()
    optimizer = in_buckets(net)
    train(net, optimizer, batches(RANK, 3))
    x, y = batches(RANK, 1)[0]
    nn.functional.mse_loss(net(x), y).backward()
    with pytest.raises(hvd.HorovodInternalError, match="expected the same calls on all ranks"):
        optimizer.step() if RANK == 0 else optimizer.zero_grad()


def test_a_gradient_that_no_rank_has():
    """The gradient is None after the step, also with compression, groups and sums, and its parameter does not
    change."""
    cases = ({}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}, {"gradient_predivide_factor": 2.0})
    for options in cases:
        net = nn.ModuleDict({"used": nn.Linear(6, 2), "first": nn.Linear(6, 2), "none": nn.Linear(6, 2)})
        optimizer = distributed(net, "adamw", **options)
        hvd.broadcast_parameters(net.state_dict(), 0)
        before = net["none"].weight.detach().clone()
        for step, (x, y) in enumerate(batches(RANK, 14)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net["used"](x), y)
            (loss + (net["first"](x).sum() if RANK == 0 and step % 2 == 0 else 0.0)).backward()
            optimizer.step()
            assert (net["first"].weight.grad is None) == (step % 2 == 1)
            assert net["none"].weight.grad is None
        assert torch.equal(net["none"].weight, before)
        same_everywhere(net)


def test_optimizers_that_are_made_and_dropped():
    """Memory, descriptors and threads stay what they are after the first ones."""
    net = nn.Linear(256, 256)

    def now():
        gc.collect()
        words = Path("/proc/self/statm").read_text().split()
        return int(words[1]) * 4096, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for count in (20, 500):
        for index in range(count):
            model_of_its_own = nn.Linear(256, 256) if index % 2 else net
            optimizer = distributed(model_of_its_own)
            model_of_its_own(torch.ones(1, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if count == 20:
            memory, files, threads = now()
    del optimizer
    later = now()
    assert later[1] <= files, (later, files)
    assert later[2] <= threads, (later, threads)
    assert later[0] < memory + (24 << 20), f"{(later[0] - memory) >> 20} MiB more"
    assert not net.weight._post_accumulate_grad_hooks


def test_gradient_predivide_factor():
    net = model()
    train(net, distributed(net, gradient_predivide_factor=2.0), batches(RANK, 10))
    agree(net, reference("sgd", 10))
    with pytest.raises(ValueError, match="gradient_predivide_factor needs op=Average"):
        distributed(model(), gradient_predivide_factor=2.0, op=hvd.Sum)


def test_sum_of_gradients():
    net, other = model(), model()
    train(net, distributed(net, op=hvd.Sum), batches(RANK, 5))
    train(other, torch.optim.SGD(other.parameters(), lr=0.1 * SIZE), pooled(5))
    agree(net, other)


def test_groups():
    for groups in (2, 100, "lists"):
        net = model()
        params = list(net.parameters())
        given = [[params[0], params[3]], [params[1]]] if groups == "lists" else groups
        train(net, distributed(net, groups=given), batches(RANK, 10))
        agree(net, reference("sgd", 10))
    with pytest.warns(DeprecationWarning, match="num_groups"):
        distributed(model(), num_groups=2)
    with pytest.raises(ValueError, match="groups is -1"):
        distributed(model(), groups=-1)


def test_compression_of_gradients():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        net = model()
        train(net, distributed(net, compression=compression), batches(RANK, 10))
        agree(net, reference("sgd", 10), 2e-2)
        same_everywhere(net)


def test_a_closure_of_fewer_backward_passes_than_announced():
    """Gradients are reduced nevertheless, like those of `step()`."""
    net = model()
    optimizer = distributed(net, backward_passes_per_step=2)
    for x, y in batches(RANK, 5):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    agree(net, reference("sgd", 5))
    same_everywhere(net)


def test_gradients_that_change_while_they_are_reduced():
    """A gradient that changes after its reduction began is an error with the recipe, however it changes."""
    if SIZE == 1:
        return
    changes = {
        "clip_grad_norm_": lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.01),
        "clip_grad_value_": lambda net: nn.utils.clip_grad_value_(net.parameters(), 1e-4),
        "through .data": lambda net: net[0].weight.grad.data.mul_(0.5),
        "replaced": lambda net: setattr(net[0].weight, "grad", net[0].weight.grad * 0.5),
    }
    for case, change in changes.items():
        for options in ({}, {"groups": 2}, {"compression": hvd.Compression.fp16}):
            net = model()
            optimizer = distributed(net, **options)
            x, y = batches(RANK, 1)[0]
            nn.functional.mse_loss(net(x), y).backward()
            change(net)
            with pytest.raises(ValueError, match=r"gradient\.0\.weight.*optimizer\.synchronize\(\); change") as caught:
                optimizer.step()
            assert f"rank {RANK}" in str(caught.value), case
            agree(net, model(), 0)
            optimizer.zero_grad()
            train(net, optimizer, batches(RANK, 2))
            same_everywhere(net)


def test_gradients_that_change_in_a_later_step():
    """A scaled gradient is detected although only a part of the bits is compared."""
    if SIZE == 1:
        return
    net = nn.Linear(100, 100)
    optimizer = distributed(net)
    for step in range(13):
        net(torch.ones(1, 100)).sum().backward()
        if step == 12:
            net.weight.grad.data.mul_(0.5)
            with pytest.raises(ValueError, match=r"gradient\.weight.*changed"):
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()


def test_gradients_that_are_zeroed_and_not_taken_away():
    """The tensors stay the same, and weights get the same bits as without zeroing."""
    net, other = model(), model()
    optimizer, usual = distributed(net), distributed(other)
    grads: list[torch.Tensor] = []
    for step, (x, y) in enumerate(batches(RANK, 14)):
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        held = [param.grad for param in net.parameters()]
        assert step == 0 or all(a is b for a, b in zip(held, grads, strict=True))
        grads = held
        optimizer.zero_grad(set_to_none=False)
        usual.zero_grad()
        nn.functional.mse_loss(other(x), y).backward()
        usual.step()
        agree(net, other, 0)
    same_everywhere(net)


def test_a_gradient_that_is_kept_over_a_step():
    """Its values do not change when the next gradient is reduced."""
    net = model()
    optimizer = distributed(net)
    kept = []
    for x, y in batches(RANK, 3):
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        kept.append((net[0].weight.grad, net[0].weight.grad.clone()))
        optimizer.zero_grad()
    assert all(torch.equal(grad, copy) for grad, copy in kept)
    assert not torch.equal(kept[0][1], kept[1][1])


def test_gradients_in_memory_of_the_user():
    """Reduced gradients are in the user's memory after each step, although the optimizer has its own memory."""
    net, other = model(), model()
    optimizer, usual = distributed(net), distributed(other)
    memory = torch.zeros(sum(param.numel() for param in net.parameters()))
    parts = memory.split([param.numel() for param in net.parameters()])
    for param, part in zip(net.parameters(), parts, strict=True):
        param.grad = part.view(param.shape)
    for x, y in batches(RANK, 12):
        memory.zero_()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.synchronize()
        train(other, usual, [(x, y)])
        assert torch.equal(memory, torch.cat([param.grad.view(-1) for param in other.parameters()]))
        with optimizer.skip_synchronize():
            optimizer.step()
    agree(net, other, 0)


def test_parameters_in_another_order():
    """Gradients are paired by name, whatever the order of a rank's parameters."""
    net, other = model(), model()
    named = list(net.named_parameters())
    named = named if RANK % 2 == 0 else named[::-1]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param for _, param in named], lr=0.1), named)
    train(net, optimizer, batches(RANK, 3))
    agree(net, train(other, distributed(other), batches(RANK, 3)), 0)


def test_models_that_differ():
    """The parameter is named, with both shapes."""
    if SIZE == 1:
        return
    net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2 if RANK == 0 else 3, bias=False))
    optimizer = distributed(net)
    net(torch.ones(1, 6)).sum().backward()
    with pytest.raises(
        hvd.HorovodInternalError, match=r"gradient\.1\.weight': shape is \(2, 2\) on rank 0 and \(3, 2\)"
    ):
        optimizer.step()
    net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2, bias=RANK == 0))
    optimizer = distributed(net)
    net(torch.ones(1, 6)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"gradient\.1\.bias"):
        optimizer.step()


def test_a_parameter_that_one_rank_has_frozen():
    """All ranks hear of it at once, whichever parameter it is."""
    if SIZE == 1:
        return
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2))
        net.get_parameter(name).requires_grad_(RANK > 0)
        optimizer = distributed(net)
        net(torch.ones(1, 6)).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match=rf"bucket is .* on rank 0 and .*gradient\.{name}"):
            optimizer.step()


def test_gradients_that_change_in_a_later_step_after_they_were_reduced():
    """A change through `.data` of a gradient in the optimizer's memory affects the reduced values."""
    if SIZE == 1:
        return
    net = nn.Linear(100, 100)
    optimizer = distributed(net)
    for step in range(13):
        net(torch.ones(1, 100)).sum().backward()
        if step == 12:
            hvd.barrier()  # comes after the gradients
            net.weight.grad.data.mul_(0.5)
            with pytest.raises(ValueError, match=r"gradient\.weight.*changed"):
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def test_step_without_synchronize_within_skip_synchronize():
    if SIZE == 1:
        return
    net = model()
    optimizer = distributed(net)
    x, y = batches(RANK, 1)[0]
    nn.functional.mse_loss(net(x), y).backward()
    with optimizer.skip_synchronize(), pytest.raises(ValueError, match="still being reduced"):
        optimizer.step()
    optimizer.step()
    same_everywhere(net)


def test_gradients_that_have_left_for_the_host():
    """If weights change during the backward pass, every use of gradients raises an error with the solution."""
    net = model()
    optimizer = hvd.HostOptimizer(net, SGD(lr=0.1), accumulate=2, update_during_backward=True)
    uses = [
        lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.01),
        lambda: nn.utils.clip_grad_value_(net.parameters(), 1e-4),
        lambda: net[0].weight.grad.norm(),
        lambda: net[0].weight.grad.data.mul_(0.5),
        lambda: [param.grad for param in net.parameters() if param.grad.sum() > 0],
    ]
    for step, (x, y) in enumerate(batches(RANK, 3)):
        nn.functional.mse_loss(net(x), y).backward()
        for use in uses:
            with pytest.raises(ValueError, match=r"'0\.weight' was read .* remove update_during_backward"):
                use()
        if step:
            with pytest.raises(ValueError, match="more backward passes than in earlier steps"):
                nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        assert all(param.grad is None for param in net.parameters())
    optimizer.synchronize()
    same_everywhere(net)
    assert not torch.equal(net[0].weight, model()[0].weight)
    optimizer.close()


def test_closed_host_optimizers_give_everything_back():
    """Descriptors, threads and memory are those of before; 3 MB and four descriptors stayed of each."""

    def held() -> tuple[int, int, int]:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), resident >> 20

    def made() -> None:
        net = nn.Linear(300, 300)
        optimizer = hvd.HostOptimizer(torch.optim.AdamW(net.parameters()), net)
        net(torch.ones(1, 300)).sum().backward()
        optimizer.step()
        optimizer.close()

    for _ in range(5):
        made()
    hvd.barrier()
    before = held()
    for _ in range(500 if SIZE == 2 else 20):
        made()
    hvd.barrier()
    after = held()
    assert after[0] <= before[0] + 4, (before, after)
    assert after[1] <= before[1] + 1, (before, after)
    assert after[2] <= before[2] + 50, (before, after)  # 60 MB of twenty stayed


def test_micro_steps_that_are_left_over_are_flushed():
    """The update uses the mean of two micro-steps of four, as in one process; before it, saving the state raises an
    error that names the call."""
    net, alone = model(), model()
    optimizer = hvd.HostOptimizer(net, SGD(lr=0.1), accumulate=4)
    reference = torch.optim.SGD(alone.parameters(), 0.1)
    data, joined = batches(RANK, 6), pooled(6)
    for part in (slice(0, 4), slice(4, 6)):
        for x, y in data[part]:
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        reference.zero_grad()
        for x, y in joined[part]:
            (nn.functional.mse_loss(alone(x), y) / len(joined[part])).backward()
        reference.step()
    with pytest.raises(ValueError, match=r"call state_dict\(\) after flush\(\)"):
        optimizer.state_dict()
    assert optimizer.flush()
    assert not optimizer.flush()
    agree(net, alone)
    assert optimizer.updates == 2
    optimizer.close()


def test_a_closed_host_optimizer_leaves_the_model_alone():
    """The last step stays, the model's state can be read, and the next optimizer goes on from it."""
    net = model()
    for x, y in batches(RANK):
        optimizer = hvd.HostOptimizer(net, SGD(lr=0.1), bucket_bytes=200)
        train(net, optimizer, [(x, y)])
        optimizer.close()
    agree(net, reference("sgd"))
    same_everywhere(net)


def test_step_after_synchronize_warns():
    if SIZE == 1:
        return
    net = model()
    optimizer = distributed(net)
    x, y = batches(RANK, 1)[0]
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def test_sparse_gradients():
    for options in ({}, {"sparse_as_dense": True}, {"gradient_predivide_factor": 2.0}):
        net, other = (nn.Embedding(8, 3, sparse=True, _weight=torch.ones(8, 3)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters(), **options
        )
        net(torch.tensor([RANK, 5])).sum().backward()
        optimizer.step()
        every = torch.cat([torch.tensor([rank, 5]) for rank in range(SIZE)])
        (other(every).sum() / SIZE).backward()
        torch.optim.SGD(other.parameters(), lr=0.5).step()
        agree(net, other)


def test_a_gradient_that_is_sparse_on_some_ranks():
    """Every rank raises an error at once that names the gradient, also if the model has no other gradients."""
    if SIZE == 1:
        return
    net = nn.Embedding(8, 3, sparse=RANK != 1)
    optimizer = distributed(net)
    net(torch.tensor([1, 2])).sum().backward()
    began = time.monotonic()
    with pytest.raises(MismatchError, match=r"weight'.*allgather on rank 0 and allreduce on rank 1.*sparse"):
        optimizer.step()
    assert time.monotonic() - began < 20, "the stall timeout is a minute"


def test_sparse_adam():
    """An optimizer that takes sparse gradients only gets them, however they travel."""
    for sparse_as_dense in (False, True):
        net, other = (nn.Embedding(8, 3, sparse=True, _weight=torch.ones(8, 3)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(net.parameters(), lr=0.1),
            net.named_parameters(),
            sparse_as_dense=sparse_as_dense,
        )
        alone = torch.optim.SparseAdam(other.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            net(torch.tensor([(RANK + step) % 8, 5])).sum().backward()
            optimizer.step()
            alone.zero_grad()
            every = torch.cat([torch.tensor([(rank + step) % 8, 5]) for rank in range(SIZE)])
            (other(every).sum() / SIZE).backward()
            alone.step()
        agree(net, other)


def test_process_set_of_an_optimizer():
    """Ranks in the set train together; a rank that is not in it trains alone, as in Horovod."""
    if SIZE < 3:
        return
    first = hvd.add_process_set([0, 1])
    for options in ({}, {"gradient_predivide_factor": 2.0}):
        net, other = model(), model()
        train(net, distributed(net, process_set=first, **options), batches(RANK, 5))
        together = [batches(rank, 5) for rank in ([0, 1] if RANK < 2 else [RANK])]
        steps = zip(*together, strict=True)
        data = [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in steps]
        agree(net, train(other, torch.optim.SGD(other.parameters(), lr=0.1), data))
    net, other = model(), model()
    train(net, distributed(net, process_set=first, op=hvd.Adasum), batches(RANK, 5))
    if RANK > 1:
        agree(net, train(other, torch.optim.SGD(other.parameters(), lr=0.1), batches(RANK, 5)), 0)
    hvd.barrier()
    assert hvd.remove_process_set(first)


def test_optimizer_keeps_its_class_and_scheduler():
    net = model()
    optimizer = distributed(net, "adam")
    assert isinstance(optimizer, torch.optim.Adam)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(net, optimizer, batches(RANK, 1))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 5e-3
    plain = TORCH_RULES["adam"](model().parameters())
    earlier = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    wrapped = hvd.DistributedOptimizer(plain)
    plain.step()
    earlier.step()
    assert wrapped.param_groups[0]["lr"] == 5e-3


def test_a_scheduler_made_before_wrapping_outlives_a_broadcast_and_a_load():
    """The scheduler sets the rate in the groups of its optimizer, into which states are loaded."""
    for options in ({}, {"op": hvd.Adasum}):
        plain = TORCH_RULES["adam"](model().parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
        wrapped = hvd.DistributedOptimizer(plain, **options)
        hvd.broadcast_optimizer_state(wrapped, 0)
        hvd.broadcast_optimizer_state(plain, 0)
        scheduler.step()
        assert wrapped.param_groups[0]["lr"] == 5e-3
        wrapped.load_state_dict(wrapped.state_dict())
        scheduler.step()
        assert wrapped.param_groups[0]["lr"] == 2.5e-3
        state = hvd.elastic.TorchState(optimizer=plain)
        scheduler.step()
        state.restore()
        assert wrapped.param_groups[0]["lr"] == 2.5e-3


def test_hooks_of_a_step():
    """Each is called once a step, with reduced gradients, also where state was loaded."""
    for options in ({}, {"op": hvd.Adasum}):
        if options and SIZE & (SIZE - 1):
            continue
        net, calls = model(), []
        optimizer = distributed(net, "momentum", **options)
        hvd.broadcast_optimizer_state(optimizer, 0)
        optimizer.register_step_pre_hook(lambda *_, called=calls: called.append("before"))
        optimizer.register_step_post_hook(lambda *_, called=calls: called.append("after"))
        train(net, optimizer, batches(RANK, 1))
        assert calls == ["before", "after"]
    clip = nn.utils.clip_grad_norm_
    net, other = model(), model()
    alone = TORCH_RULES["sgd"](other.parameters())
    optimizer = distributed(net)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.register_step_pre_hook(lambda *_: clip(net.parameters(), 0.1) and None)
    alone.register_step_pre_hook(lambda *_: clip(other.parameters(), 0.1) and None)
    train(net, optimizer, batches(RANK, 3))
    train(other, alone, pooled(3))
    agree(net, other)


def test_a_group_of_parameters_that_is_added_later():
    """Gradients of the new group are reduced like the others; with Adasum, its steps are combined."""
    net = model()
    optimizer = hvd.DistributedOptimizer(TORCH_RULES["sgd"](net[0].parameters()), net[0].named_parameters())
    optimizer.add_param_group({"params": [*net[2].parameters(), *net[4].parameters()]})
    agree(train(net, optimizer, batches(RANK, 5)), reference("sgd", 5))
    same_everywhere(net)
    if SIZE & (SIZE - 1):
        return
    net = model()
    optimizer = hvd.DistributedOptimizer(TORCH_RULES["sgd"](net[0].parameters()), op=hvd.Adasum)
    optimizer.add_param_group({"params": [*net[2].parameters(), *net[4].parameters()]})
    train(net, optimizer, batches(RANK, 5))
    same_everywhere(net)


def test_names_of_parameters():
    net = model()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"parameters \[2, 3, 4, 5\] of the optimizer .* have no name"):
        hvd.DistributedOptimizer(sgd, list(net.named_parameters())[:2])
    with pytest.raises(ValueError, match="name more than one parameter"):
        hvd.DistributedOptimizer(sgd, [("same", param) for param in net.parameters()])
    with pytest.raises(ValueError, match="pairs"):
        hvd.DistributedOptimizer(sgd, net.parameters())
    with pytest.raises(ValueError, match="op is Max"):
        hvd.DistributedOptimizer(sgd, op=hvd.Max)
    with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))


def test_adasum_optimizer():
    """Ranks with the same batch make the step of one of them."""
    if SIZE & (SIZE - 1):
        return
    net, other = model(), model()
    train(net, distributed(net, op=hvd.Adasum), batches(0, 5))
    agree(net, train(other, TORCH_RULES["sgd"](other.parameters()), batches(0, 5)))
    optimizer = distributed(net, op=hvd.Adasum)
    train(net, optimizer, batches(RANK, 5))
    same_everywhere(net)
    with pytest.raises(AssertionError, match="no meaning with Adasum"), optimizer.skip_synchronize():
        pass


def test_where_the_time_of_a_step_goes():
    """The wait for reductions and the wrapped optimizer's step are measured; with a closure the step is not."""
    net = model()
    optimizer = distributed(net)
    measured.reset()
    train(net, optimizer, batches(RANK, 3))
    times = measured.take()
    assert times["updateTime"] > 0
    assert (times.get("reductionWait", 0) > 0) == (SIZE > 1)
    measured.reset()
    x, y = batches(RANK, 1)[0]

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "updateTime" not in measured.take()
    other = model()
    host = hvd.HostOptimizer(other, SGD(lr=0.1))
    measured.reset()
    train(other, host, batches(RANK, 3))
    host.close()
    assert measured.take()["reductionWait"] > 0
