"""Checks of what only ringtrain.torch.HostOptimizer has or refuses, run on every rank of a world."""

import pytest
import torch
from torch import distributed, nn
from torch.nn.utils import prune
from torch_training import RANK, SIZE, TORCH_RULES, agree, batches, model, pooled, same_everywhere, train

import ringtrain.torch as hvd
from ringtrain.errors import ConfigurationError, MismatchError, StateCorrupt
from ringtrain.optim.memory_check import EVERY, PARTS

RUN_IN = [
    {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}},
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]},
        "tests": ["test_weights_that_one_rank_alone_writes"],
    },
]

ODD = SIZE - 1


def made(net, rule="sgd", **options):
    return hvd.HostOptimizer(TORCH_RULES[rule](net.parameters()), net, **options)


def test_weights_change_during_the_backward_pass_where_that_is_asked_for():
    """Weights equal those of one process, and an element is new before `step()` when its gradient has been reduced."""
    net, other = model(), model()
    optimizer = made(net, "adamw", update_during_backward=True)
    seen = []
    for step, (x, y) in enumerate(batches(RANK)):
        optimizer.zero_grad()
        before = net[4].weight.detach().clone()
        nn.functional.mse_loss(net(x), y).backward()
        if step:  # in the first step gradients leave at its end
            optimizer._host._thread.join()
            seen.append(not torch.equal(net[4].weight, before))
        optimizer.step()
    assert all(seen)
    agree(net, train(other, TORCH_RULES["adamw"](other.parameters()), pooled()))
    optimizer.close()


def test_gradients_that_wait_for_more_passes_are_where_they_are_reduced():
    """Until the last backward pass of a step a gradient is in the optimizer's memory only, and sums are torch's."""
    net, other = model(), model()
    optimizer, reference = made(net, "adamw"), TORCH_RULES["adamw"](other.parameters())
    waiting = 0
    own, joined = batches(RANK), pooled()
    for first in range(0, len(own) - 1, 2):
        for module, one, passes in ((net, optimizer, own), (other, reference, joined)):
            one.zero_grad()
            for x, y in passes[first : first + 2]:
                nn.functional.mse_loss(module(x), y).backward()
                for gradient in optimizer._gradients._all:
                    if gradient.pending is not None and gradient.param.device.type == "cpu":
                        waiting += 1
                        room = optimizer._host.gradient(gradient.name)
                        assert gradient.pending.data_ptr() == room.ctypes.data, gradient.name
            one.step()
    assert waiting or net[0].weight.device.type != "cpu"
    agree(net, other)
    optimizer.close()


def test_gradients_without_memory():
    """Reading memory below torch's functions raises: there is none."""
    net = model()
    optimizer = made(net)
    for x, y in batches(RANK, 3):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            torch.utils.dlpack.to_dlpack(net[0].weight.grad)
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            torch._C._to_dlpack(net[0].weight.grad)
        assert not net[0].weight.grad.untyped_storage().nbytes() or net[0].weight.grad.norm() > 0
        optimizer.step()
    optimizer.close()


def test_the_wrapped_optimizer_is_refused_until_close():
    """Calls of its step, its state and its load raise an error; a schedule of it continues."""
    net, other = model(), model()
    plain, reference = TORCH_RULES["adamw"](net.parameters()), TORCH_RULES["adamw"](other.parameters())
    optimizer = hvd.HostOptimizer(plain, net)
    schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (plain, reference)]
    calls = {"step": plain.step, "state_dict": plain.state_dict, "load_state_dict": lambda: plain.load_state_dict({})}
    for (x, y), joined in zip(batches(RANK), pooled(), strict=True):
        train(net, optimizer, [(x, y)])
        train(other, reference, [joined])
        for schedule in schedules:
            schedule.step()
        for name, call in calls.items():
            with pytest.raises(ConfigurationError, match=rf"AdamW\.{name}\(\) .* call {name}\(\) of the HostOptimizer"):
                call()
    agree(net, other)
    optimizer.close()
    plain.zero_grad()
    net(batches(0, 1)[0][0]).sum().backward()
    plain.step()
    same_everywhere(net)


def test_weights_that_one_rank_alone_writes():
    """A whole model, one layer of it, and what one rank writes in each step are found on all ranks; what is put back
    before the next step, as an average that is tried out, is not."""

    def loaded(net, step):
        if step == 2 and RANK == ODD:
            net.load_state_dict({name: torch.full_like(value, 7.0) for name, value in net.state_dict().items()})

    def layer(net, step):
        if step == 2 and RANK == ODD:
            net[2].bias.data.fill_(7.0)

    def element(net, step):
        if RANK == ODD:
            net[0].weight.data[3, 3] = 1.0

    def tried(net, step):
        if RANK == ODD:
            kept = net[0].weight.detach().clone()
            net[0].weight.data.fill_(0.0)
            net(batches(0, 1)[0][0])
            net[0].weight.data.copy_(kept)

    for write in (loaded, layer, element, tried):
        for wide in (False, True):  # weights that are looked at in parts
            net = nn.Sequential(nn.Linear(6, 256), nn.Linear(256, 256), nn.Linear(256, 2)) if wide else model()
            optimizer = hvd.HostOptimizer(torch.optim.SGD(net.parameters(), lr=0.001), net)
            data = batches(RANK, (PARTS if write is element else 0) + 2 * EVERY)

            def trains(net=net, optimizer=optimizer, data=data, write=write):
                for step, batch in enumerate(data):
                    write(net, step)
                    train(net, optimizer, [batch])

            if SIZE == 1 or write is tried:
                trains()
            else:
                with pytest.raises(StateCorrupt, match="before update") as raised:
                    trains()
                assert raised.value.ranks == ((ODD,) if SIZE > 2 else (0, 1)), write
            optimizer.close()


def test_layers_that_compute_a_weight_before_they_run():
    """With `overlap` the layers compute the weight from new values."""
    wraps = {
        "weight_norm": nn.utils.weight_norm,
        "spectral_norm": nn.utils.spectral_norm,
        "prune": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        "parametrized": nn.utils.parametrizations.weight_norm,
    }
    for name, wrap in wraps.items():
        net, other = (nn.Sequential(wrap(nn.Linear(6, 300)), nn.Tanh(), wrap(nn.Linear(300, 2))) for _ in range(2))
        other.load_state_dict(hvd.broadcast_object(net.state_dict(), 0, name=name))
        optimizer = made(net, "adam", overlap=True)
        losses = []
        for one, stepping, data in (
            (net, optimizer, batches(RANK)),
            (other, TORCH_RULES["adam"](other.parameters()), pooled()),
        ):
            losses.append([])
            for x, y in data:
                stepping.zero_grad()
                loss = nn.functional.mse_loss(one(x), y)
                loss.backward()
                stepping.step()
                losses[-1].append(hvd.allreduce(loss.detach(), name=f"loss of {name}"))
        optimizer.synchronize()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4, msg=name)
        optimizer.close()


def test_what_can_not_be_trained_is_refused_in_words():
    """Each line names what was found and the way out."""
    net = model()
    optimizer = made(net)
    with pytest.raises(
        ConfigurationError, match=r"'0\.weight' is trained by another HostOptimizer already; call its close"
    ):
        made(net)
    optimizer.close()
    made(net).close()

    class Cut(nn.Parameter):
        device_mesh = None

    net[0].weight = Cut(net[0].weight.detach())
    with pytest.raises(ConfigurationError, match=r"'0\.weight' is a Cut, which fully_shard \(FSDP2\)"):
        made(net)


def test_a_model_in_a_wrapper_of_torch_is_refused():
    """The wrapper is found where the optimizer gets it, and where it gets what is in it."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        net = model()
        wrapped = nn.parallel.DistributedDataParallel(net)
        for given in (wrapped, net):
            with pytest.raises(
                ConfigurationError, match="in a DistributedDataParallel, which reduces gradients itself"
            ):
                made(given)
        del wrapped
    finally:
        distributed.destroy_process_group()


def test_ranks_that_make_other_calls():
    """The error on all ranks names each rank's call."""
    if SIZE == 1:
        return

    def reads(net, optimizer):
        net[0].weight.grad.norm()

    def forgets(net, optimizer):
        optimizer.zero_grad()
        net(torch.ones(1, 6)).sum().backward()

    def joins(net, optimizer):
        optimizer.step()
        hvd.join()

    def goes_on(net, optimizer, call, data):
        if RANK == ODD:
            call(net, optimizer)
        optimizer.step()
        train(net, optimizer, data)

    words = {
        reads: rf"rank {ODD} read or changed gradients, .*before step\(\)",
        forgets: rf"rank {ODD} made gradients of another backward pass",
        joins: rf"rank {ODD} called join\(\); join\(\) is not supported with a HostOptimizer",
    }
    for call, said in words.items():
        net = model()
        optimizer = made(net)
        data = batches(RANK, 5)
        train(net, optimizer, data[:3])
        optimizer.zero_grad()
        nn.functional.mse_loss(net(data[3][0]), data[3][1]).backward()
        with pytest.raises(MismatchError, match=said):
            goes_on(net, optimizer, call, data[4:])
        optimizer.close()
        hvd.shutdown()
        hvd.init()


def test_join_after_as_many_steps():
    """The call returns, before and after `close()`."""
    net = model()
    optimizer = made(net)
    train(net, optimizer, batches(RANK, 3))
    hvd.join()
    train(net, optimizer, batches(RANK, 3))
    optimizer.close()
    hvd.join()


def test_join_while_others_reduce_by_name():
    """An open optimizer without updates delays no rank."""
    net = model()
    optimizer = made(net)
    train(net, optimizer, batches(RANK, 1))
    for step in range(1 if RANK == 0 else 3):
        summed = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="beside an optimizer")
        assert summed.item() == (SIZE if step == 0 else SIZE - 1)
    assert hvd.join() != 0 or SIZE == 1
    optimizer.close()


def test_a_compiled_step():
    """Forward and backward pass, step and zero_grad in one compiled function: as one process."""
    net, other = model(), model()
    optimizer, reference = made(net, "adamw"), TORCH_RULES["adamw"](other.parameters())

    @torch.compile(backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    for x, y in batches(RANK):
        step(x, y)
    agree(net, train(other, reference, pooled()))
    optimizer.close()
