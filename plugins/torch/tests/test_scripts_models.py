"""Ordinary training scripts with PyTorch: kinds of models, and what is done with a model while it is trained."""

import copy
import io
import itertools
import pickle
import warnings

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint
from torch_oracle import ADAMW, Run, begin, loss_of, mlp, passes, train, trained

import ringtrain.torch as hvd

RUN_IN = [
    {
        "framework": "ringtrain.torch",
        "ranks": [1, 3],
        "each": {"RINGTRAIN_TEST_OPTIMIZER": ["distributed", "host"], "RINGTRAIN_TRANSPORT": ["auto", "grpc"]},
        "pairs": True,
        "judge": "torch_oracle.run",
    },
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_OPTIMIZER": ["distributed", "host"], "RINGTRAIN_TRANSPORT": ["torch"]},
        "judge": "torch_oracle.run",
    },
]


class TwoHeads(nn.Module):
    """Model whose `forward` uses the head in its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])

    def forward(self, x: torch.Tensor, head: int = 0) -> torch.Tensor:
        return self.heads[head](torch.tanh(self.trunk(x)))


def test_unused_head(r: Run):
    return train(r, *begin(r, model=TwoHeads()))


def test_heads_in_turn(r: Run):
    model, optimizer = begin(r, torch.optim.AdamW, TwoHeads(), lr=0.1, weight_decay=0.1)
    turns = itertools.cycle([0, 1])
    return train(r, model, optimizer, 6, lambda x, y: nn.functional.mse_loss(model(x, next(turns)), y))


def test_heads_in_turn_with_momentum(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, TwoHeads(), lr=0.1, momentum=0.9, weight_decay=0.1)
    turns = itertools.cycle([0, 0, 1, 1])
    return train(r, model, optimizer, 14, lambda x, y: nn.functional.mse_loss(model(x, next(turns)), y))


def test_head_of_one_rank(r: Run):
    model, optimizer = begin(r, model=TwoHeads())
    first = r.part(torch.arange(12)) == 0  # one row of the joined batch, which one rank has

    def loss(x, y):
        loss = (model(x) - y).square().mean()
        return loss + model(x[first], 1).square().mean() / len(first) if first.any() else loss

    return train(r, model, optimizer, 4, loss)


def test_a_sparse_head_of_one_rank(r: Run):
    model = nn.ModuleDict({"all": nn.Linear(6, 2), "one": nn.Embedding(5, 2, sparse=True)})
    first = r.part(torch.arange(12)) == 0

    def loss(x, y):
        loss = loss_of(model["all"], x, y)
        return loss + model["one"](torch.tensor([1, 3])).square().sum() / len(first) if first.any() else loss

    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1), 3, loss)


def test_sparse_beside_dense_in_turn(r: Run):
    model = nn.ModuleDict({"all": nn.Linear(6, 2), "table": nn.Embedding(5, 2, sparse=True)})
    steps = itertools.count()

    def loss(x, y):
        step, loss = next(steps), loss_of(model["all"], x, y)
        return loss if step % 2 else loss + model["table"](torch.tensor([1, step % 5])).square().sum()

    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1), 6, loss)


def test_frozen_from_the_start(r: Run):
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return train(r, model, r.wrap(optimizer, model))


def test_frozen_and_in_the_optimizer(r: Run):
    model = mlp()
    model[0].requires_grad_(False)
    return train(r, *begin(r, model=model))


def test_frozen_and_thawed(r: Run):
    model, optimizer = begin(r)
    for thawed in (True, False, True):
        model[0].requires_grad_(thawed)
        train(r, model, optimizer, 3)
    return model


def test_thawed_later(r: Run):
    model = mlp()
    model[0].requires_grad_(False)
    _, optimizer = begin(r, model=model)
    train(r, model, optimizer, 3)
    model[0].requires_grad_(True)
    return train(r, model, optimizer, 3)


def test_frozen_in_every_other_step(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(6):
        model[2].requires_grad_(step % 2 == 0)
        train(r, model, optimizer, 1)
    return model


def test_tied_weights(r: Run):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    return train(r, *begin(r, model=model), targets=6)


def test_low_precision_autocast_bf16(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.05)

    def loss(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.mse_loss(model(x).float(), y)

    return train(r, model, optimizer, 4, loss)


def _scaled(r: Run, around_step):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    for x, y in r.data(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        around_step(scaler, optimizer, model)
        scaler.update()
    return model, scaler.state_dict()


def test_low_precision_autocast_fp16_and_scaler(r: Run):
    def step(scaler, optimizer, model):
        with r.whole_gradients(optimizer):
            scaler.step(optimizer)

    return _scaled(r, step)


def test_low_precision_scaler_and_clipping(r: Run):
    def step(scaler, optimizer, model):
        with r.whole_gradients(optimizer):
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)

    return _scaled(r, step)


def test_scaler_without_synchronize(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for x, y in r.data(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def test_scaler_that_skips_a_step(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step, (x, y) in enumerate(r.data(5)):
        optimizer.zero_grad()
        infinite = r.part(torch.arange(12) == 5).any() and step == 2
        scaler.scale(loss_of(model, x * float("inf") if infinite else x, y)).backward()
        with r.whole_gradients(optimizer):
            scaler.step(optimizer)
        scaler.update()
    return model, scaler.get_scale()


test_low_precision_bf16_model = trained(ADAMW, 4, torch.bfloat16)


def test_low_precision_clamped_after_each_step(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, model=mlp(dtype=torch.bfloat16), lr=0.05)
    for _ in passes(r, model, optimizer, 4, dtype=torch.bfloat16):
        optimizer.step()
        with torch.no_grad():
            for param in model.parameters():
                param.clamp_(-0.125, 0.125)
    return model


def test_low_precision_fp16_model_loaded_in_mid_training(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, model=mlp(dtype=torch.float16), lr=0.01)
    train(r, model, optimizer, 2, dtype=torch.float16)
    model.load_state_dict({name: torch.full_like(value, 0.25) for name, value in model.state_dict().items()})
    return train(r, model, optimizer, 2, dtype=torch.float16)


def test_mixed_types(r: Run):
    model = nn.Sequential(nn.Linear(6, 8).double(), nn.Tanh(), nn.Linear(8, 2).double())
    model.scale = nn.Parameter(torch.ones(2))
    _, optimizer = begin(r, model=model)
    for x, y in r.data(4, dtype=torch.float64):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x) * model.scale, y).backward()
        optimizer.step()
    return model


test_double_precision = trained(ADAMW, dtype=torch.float64)


def test_clipped_weights(r: Run):
    model, optimizer = begin(r, torch.optim.RMSprop, lr=0.05)
    for _ in passes(r, model, optimizer):
        optimizer.step()
        for param in model.parameters():
            param.data.clamp_(-0.05, 0.05)
    return model


def test_ema(r: Run):
    model, optimizer = begin(r)
    average = copy.deepcopy(model).requires_grad_(False)
    for _ in passes(r, model, optimizer):
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    return model, average


def test_ema_swapped_in(r: Run):
    (model, optimizer), losses = begin(r), []
    average = [param.detach().clone() for param in model.parameters()]
    for x, y in r.data(4):
        train(r, model, optimizer, 1)
        torch._foreach_lerp_(average, [param.data for param in model.parameters()], 0.5)
        own = [param.data for param in model.parameters()]
        for param, slow in zip(model.parameters(), average, strict=True):
            param.data = slow
        losses.append(r.mean(loss_of(model, x, y)))
        for param, kept in zip(model.parameters(), own, strict=True):
            param.data = kept
    return model, average, losses


def test_swa(r: Run):
    model, optimizer = begin(r)
    average = swa_utils.AveragedModel(model)
    rate = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    for _ in range(4):
        train(r, model, optimizer, 1)
        average.update_parameters(model)
        rate.step()
    return model, average


def test_old_weight_norm(r: Run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2))
    train(r, *begin(r, model=model))
    return list(model.parameters())


def test_weight_norm(r: Run):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2))
    return train(r, *begin(r, model=model))


def test_spectral_norm(r: Run):
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2))
    return train(r, *begin(r, model=model))


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


def test_parametrization(r: Run):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    _, optimizer = begin(r, model=model)
    with parametrize.cached():
        pass
    return train(r, model, optimizer)


def test_complex_parameters(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, model=nn.Linear(3, 2, dtype=torch.complex64), lr=0.05, momentum=0.9)
    for x, y in r.data(4):
        optimizer.zero_grad()
        (model(torch.complex(x[:, :3], x[:, 3:])).abs() - y).square().mean().backward()
        optimizer.step()
    return model


def test_complex_beside_real(r: Run):
    model = nn.ParameterDict({"c": torch.randn(6, 2, dtype=torch.complex128), "r": torch.randn(2)})
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.05), model)
    for x, y in r.data(4):
        optimizer.zero_grad()
        ((x.to(torch.complex128) @ model["c"]).real * model["r"] - y).square().mean().backward()
        optimizer.step()
    return model


def test_channels_last(r: Run):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    model = model.to(memory_format=torch.channels_last)
    return train(r, *begin(r, model=model), 3, features=(3, 6, 6))


def test_channels_last_in_mid_training(r: Run):
    model, optimizer = begin(r, model=nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))
    train(r, model, optimizer, 2, features=(3, 6, 6))
    model.to(memory_format=torch.channels_last)
    return train(r, model, optimizer, 2, features=(3, 6, 6))


def test_compiled(r: Run):
    model, optimizer = begin(r)
    compiled = torch.compile(model, backend="eager")
    return train(r, model, optimizer, 4, lambda x, y: loss_of(compiled, x, y))


def test_activation_checkpointing(r: Run):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    forward = lambda x: model[4](checkpoint(model[:4], x, use_reentrant=False))  # noqa: E731
    return train(r, *begin(r, model=model), 4, lambda x, y: loss_of(forward, x, y))


def test_reentrant_checkpointing(r: Run):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    forward = lambda x: model[4](checkpoint(model[:4], x.requires_grad_(), use_reentrant=True))  # noqa: E731
    return train(r, *begin(r, model=model), 4, lambda x, y: loss_of(forward, x, y))


def test_lstm(r: Run):
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 6, 2, batch_first=True), "head": nn.Linear(6, 2)})
    _, optimizer = begin(r, model=model)
    for x, y in r.data(4, features=(5, 4)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model["head"](model["lstm"](x)[0][:, -1]), y).backward()
        optimizer.step()
    return model


def test_transformer(r: Run):
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Flatten(), nn.Linear(40, 2))
    return train(r, *begin(r, torch.optim.SGD, model, lr=0.05), 3, features=(5, 8))


def test_batch_norm_of_all_ranks(r: Run):
    model = nn.Sequential(nn.Linear(6, 8), r.batch_norm(8), nn.Tanh(), nn.Linear(8, 2))
    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1))


def test_converted_by_torch(r: Run):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    if not r.alone:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1))


def test_converted(r: Run):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    if not r.alone:
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1), features=(3, 6, 6))


def test_batch_norm_in_evaluation(r: Run):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model[1].eval()
    return train(r, *begin(r, model=model))


def test_dropout_with_given_masks(r: Run):
    model, optimizer = begin(r)
    generator = torch.Generator().manual_seed(1)
    for x, y in r.data(4):
        mask = r.part(torch.rand(12, 8, generator=generator) > 0.5)
        optimizer.zero_grad()
        nn.functional.mse_loss(model[2](model[1](model[0](x)) * mask), y).backward()
        optimizer.step()
    return model


def test_buffers_of_whole_numbers(r: Run):
    model = mlp()
    model.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    model.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
    train(r, *begin(r, model=model))
    model.steps += 5
    return model


def test_empty_parameter(r: Run):
    model = mlp()
    model.none = nn.Parameter(torch.zeros(0, 3))
    return train(r, *begin(r, model=model), 3, lambda x, y: loss_of(model, x, y) + model.none.sum())


def test_scalar_parameter(r: Run):
    model = mlp()
    model.scale = nn.Parameter(torch.tensor(1.5))
    return train(r, *begin(r, model=model), 4, lambda x, y: nn.functional.mse_loss(model(x) * model.scale, y))


def test_new_memory_for_parameters(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1, momentum=0.9)
    for _ in range(3):
        train(r, model, optimizer, 2)
        for param in model.parameters():
            param.data = param.data.clone()
    return model


def test_loaded_in_mid_training(r: Run):
    model, optimizer = begin(r)
    start = copy.deepcopy(model.state_dict())
    train(r, model, optimizer, 3)
    model.load_state_dict(start)
    return train(r, model, optimizer, 3)


def test_optimizer_state_loaded(r: Run):
    model, optimizer = begin(r)
    train(r, model, optimizer, 3)
    state = copy.deepcopy(optimizer.state_dict())
    train(r, model, optimizer, 2)
    optimizer.load_state_dict(state)
    return train(r, model, optimizer, 2)


def test_resumed_in_mid_epoch(r: Run):
    model, optimizer = begin(r)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for x, y in itertools.islice(r.data(6), 3):
        optimizer.zero_grad(), loss_of(model, x, y).backward(), optimizer.step(), scheduler.step()
    saved = io.BytesIO()
    torch.save([part.state_dict() for part in (model, optimizer, scheduler)], saved)
    saved.seek(0)
    model, optimizer = begin(r)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for part, state in zip((model, optimizer, scheduler), torch.load(saved), strict=True):
        part.load_state_dict(state)
    for x, y in itertools.islice(r.data(6), 3, None):
        optimizer.zero_grad(), loss_of(model, x, y).backward(), optimizer.step(), scheduler.step()
    return model, optimizer.param_groups[0]["lr"]


def test_saved_as_a_whole(r: Run):
    model, optimizer = begin(r)
    train(r, model, optimizer, 3)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    return train(r, model, optimizer, 2), read, pickle.loads(pickle.dumps(model))


def test_copied_while_it_is_trained(r: Run):
    model, optimizer = begin(r)
    copies = []
    for _ in range(3):
        train(r, model, optimizer, 1)
        copies.append(copy.deepcopy(model))
    other = copies[0]
    return train(r, model, optimizer, 2), copies, train(r, *begin(r, model=other), 2)


def test_pickled_optimizer(r: Run):
    model, optimizer = begin(r)
    train(r, model, optimizer, 3)
    model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    return train(r, model, optimizer, 3)


def test_copied_optimizer(r: Run):
    model, optimizer = begin(r)
    train(r, model, optimizer, 3)
    both = copy.deepcopy((model, optimizer))
    return train(r, *both, 3), model


def _gan(by_module: bool, one_loss: bool = False, passes: int = 1):
    """`by_module`: the critic zeroes its gradients, and not its optimizer. `one_loss`: of real and fake rows."""
    softplus = nn.functional.softplus

    def script(r: Run):
        generator, critic = mlp(3, 6), mlp(6, 1)
        of_g = r.wrap(torch.optim.Adam(generator.parameters(), lr=0.01), generator)
        of_c = r.wrap(torch.optim.Adam(critic.parameters(), lr=0.01), critic, passes=passes)
        noise = torch.Generator().manual_seed(5)
        for real, _ in r.data(6):
            fake = generator(r.part(torch.randn(12, 3, generator=noise)))
            (critic if by_module else of_c).zero_grad()
            if one_loss:
                (softplus(-critic(real)) + softplus(critic(fake.detach()))).mean().backward()
            else:
                softplus(-critic(real)).mean().backward()
                softplus(critic(fake.detach())).mean().backward()
            of_c.step()
            generator.zero_grad()
            softplus(-critic(fake)).mean().backward()
            of_g.step()
        return generator, critic

    return script


test_gan = _gan(by_module=True)
test_gan_with_announced_passes = _gan(by_module=False, passes=2)
test_gan_with_one_loss = _gan(by_module=False, one_loss=True)
test_gan_with_one_loss_zeroed_by_the_module = _gan(by_module=True, one_loss=True)


def test_gan_with_frozen_critic(r: Run):
    generator, critic = mlp(3, 6), mlp(6, 1)
    of_g = r.wrap(torch.optim.Adam(generator.parameters(), lr=0.01), generator)
    of_c = r.wrap(torch.optim.Adam(critic.parameters(), lr=0.01), critic)
    noise = torch.Generator().manual_seed(5)
    for real, _ in r.data(6):
        fake = generator(r.part(torch.randn(12, 3, generator=noise)))
        critic.requires_grad_(True), of_c.zero_grad()
        (critic(fake.detach()) - critic(real)).mean().backward()
        of_c.step(), critic.requires_grad_(False), of_g.zero_grad()
        (-critic(fake)).mean().backward()
        of_g.step()
    return generator, critic


def test_wgan_with_many_critic_steps(r: Run):
    generator, critic = mlp(3, 6), mlp(6, 1)
    of_g = r.wrap(torch.optim.RMSprop(generator.parameters(), lr=0.005), generator)
    of_c = r.wrap(torch.optim.RMSprop(critic.parameters(), lr=0.005), critic)
    for step, (real, y) in enumerate(r.data(9)):
        fake = generator(y.repeat(1, 2)[:, :3])
        of_c.zero_grad()
        (critic(fake.detach()) - critic(real)).mean().backward()
        of_c.step()
        if step % 3 == 2:
            of_g.zero_grad()
            (-critic(fake)).mean().backward()
            of_g.step()
    return generator, critic


def test_two_optimizers_of_one_model(r: Run):
    model = mlp()
    body = r.wrap(torch.optim.SGD(model[0].parameters(), lr=0.1), model)
    head = r.wrap(torch.optim.AdamW(model[2].parameters(), lr=0.01), model)
    for x, y in r.data(4):
        body.zero_grad(), head.zero_grad()
        loss_of(model, x, y).backward()
        body.step(), head.step()
    return model


def test_functional_call(r: Run):
    model, optimizer = begin(r)
    forward = lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,))  # noqa: E731
    return train(r, model, optimizer, 3, lambda x, y: loss_of(forward, x, y))


def test_reinitialised_layer(r: Run):
    model, optimizer = begin(r)
    train(r, model, optimizer, 3)
    nn.init.constant_(model[2].weight, 0.1)
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    return train(r, model, optimizer, 3)
