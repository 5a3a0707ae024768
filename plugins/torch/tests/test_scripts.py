"""Ordinary training scripts with PyTorch: optimizers, learning rates, gradients. `torch_oracle` runs them."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as rates
from torch_oracle import Run, begin, loss_of, mlp, passes, train, trained

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


test_sgd = trained(torch.optim.SGD, lr=0.1)

test_momentum_and_decay = trained(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, dampening=0.1)

test_nesterov = trained(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)

test_adam = trained(torch.optim.Adam, lr=0.01)

test_adam_with_l2 = trained(torch.optim.Adam, lr=0.01, weight_decay=0.1)

test_adamw = trained(torch.optim.AdamW, lr=0.01, weight_decay=0.1)

test_amsgrad = trained(torch.optim.AdamW, lr=0.01, amsgrad=True)

test_rmsprop = trained(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True)

test_adagrad = trained(torch.optim.Adagrad, lr=0.05, lr_decay=0.1)

test_adadelta = trained(torch.optim.Adadelta, lr=1.0)

test_adamax = trained(torch.optim.Adamax, lr=0.01)

test_nadam = trained(torch.optim.NAdam, lr=0.01)

test_radam = trained(torch.optim.RAdam, steps=8, lr=0.01)


test_asgd = trained(torch.optim.ASGD, lr=0.05)

test_rprop = trained(torch.optim.Rprop, dtype=torch.float64, lr=0.01)


test_adafactor = trained(torch.optim.Adafactor, lr=0.01)


def test_low_precision_muon(r: Run):
    model = mlp()
    matrices = [param for param in model.parameters() if param.ndim == 2]
    vectors = [param for param in model.parameters() if param.ndim < 2]
    muon = r.wrap(torch.optim.Muon(matrices, lr=0.01), model)
    adamw = r.wrap(torch.optim.AdamW(vectors, lr=0.01), model)
    for x, y in r.data(4):
        muon.zero_grad(), adamw.zero_grad()
        loss_of(model, x, y).backward()
        muon.step(), adamw.step()
    return model


def closure_of(model, optimizer, x, y):
    """Return the closure that torch's optimizers call once or several times a step."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    return closure


def _lbfgs(steps: int, **options):
    def script(r: Run):
        model, optimizer = begin(r, torch.optim.LBFGS, mlp(dtype=torch.float64), max_iter=4, **options)
        for x, y in r.data(steps, dtype=torch.float64):
            optimizer.step(closure_of(model, optimizer, x, y))
        return model

    return script


test_lbfgs = _lbfgs(3)


test_lbfgs_with_a_line_search = _lbfgs(2, line_search_fn="strong_wolfe")


def test_closure_of_adam(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    losses = []
    for x, y in r.data(4):
        losses.append(r.mean(optimizer.step(closure_of(model, optimizer, x, y))))
    return model, losses


def test_sparse_adam(r: Run):
    model, optimizer = begin(r, torch.optim.SparseAdam, model=nn.Embedding(20, 4, sparse=True), lr=0.1)
    return train(r, model, optimizer, 4, lambda x, _: model((x[:, 0].abs() * 5).long()).square().sum(1).mean())


def test_sparse_embedding_of_sgd(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, model=nn.EmbeddingBag(20, 4, sparse=True), lr=0.1)
    return train(r, model, optimizer, 4, lambda x, _: model((x.abs() * 5).long()).square().sum(1).mean())


def test_groups(r: Run):
    model = mlp()
    decayed = [
        {"params": model[0].parameters(), "weight_decay": 0.1, "lr": 0.05},
        {"params": model[2].parameters()},
    ]
    return train(r, model, r.wrap(torch.optim.AdamW(decayed, lr=0.01, weight_decay=0.0), model))


def test_groups_by_name(r: Run):
    model = mlp()
    return train(r, model, r.wrap(torch.optim.SGD(model.named_parameters(), lr=0.05), model))


def test_group_changed_by_hand(r: Run):
    model, optimizer = begin(r, torch.optim.AdamW, lr=0.01)
    for step, (x, y) in enumerate(r.data(6)):
        optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
        optimizer.param_groups[0]["betas"] = (0.5, 0.9) if step > 2 else (0.9, 0.999)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def test_added_group(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9), model[0])
    train(r, model, optimizer, 2)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
    return train(r, model, optimizer, 4)


test_maximize = trained(torch.optim.SGD, lr=0.01, maximize=True)

test_foreach = trained(torch.optim.AdamW, lr=0.01, foreach=True)

test_not_foreach = trained(torch.optim.AdamW, lr=0.01, foreach=False)

test_fused = trained(torch.optim.AdamW, lr=0.01, fused=True)


def test_differentiable(r: Run):
    model = mlp()
    params = [param.detach().requires_grad_() for param in model.parameters()]
    optimizer = r.wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9, differentiable=False), model)
    for x, y in r.data(3):
        optimizer.zero_grad()
        hidden = torch.tanh(nn.functional.linear(x, params[0], params[1]))
        nn.functional.mse_loss(nn.functional.linear(hidden, params[2], params[3]), y).backward()
        optimizer.step()
    return params


def test_rate_as_a_tensor(r: Run):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    optimizer = r.wrap(optimizer, model)
    train(r, model, optimizer, 2)
    optimizer.param_groups[0]["lr"].fill_(0.05)
    return train(r, model, optimizer, 2)


def _scheduled(make):
    def script(r: Run):
        model, optimizer = begin(r, torch.optim.SGD, lr=0.1, momentum=0.9)
        scheduler, seen = make(optimizer), []
        for _ in passes(r, model, optimizer, 6):
            optimizer.step()
            scheduler.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return model, seen

    return script


test_step_rate = _scheduled(lambda optimizer: rates.StepLR(optimizer, 2, 0.5))

test_one_cycle = _scheduled(lambda optimizer: rates.OneCycleLR(optimizer, 0.2, total_steps=7))

test_cyclic_rate = _scheduled(lambda optimizer: rates.CyclicLR(optimizer, 0.01, 0.1, 2))

test_cosine_rate = _scheduled(lambda optimizer: rates.CosineAnnealingLR(optimizer, 6))

test_warm_restarts = _scheduled(lambda optimizer: rates.CosineAnnealingWarmRestarts(optimizer, 3))

test_lambda_rate = _scheduled(lambda optimizer: rates.LambdaLR(optimizer, lambda step: 1 / (step + 1)))

test_sequential_rates = _scheduled(
    lambda optimizer: rates.SequentialLR(
        optimizer, [rates.LinearLR(optimizer, 0.1, total_iters=3), rates.ExponentialLR(optimizer, 0.9)], [3]
    )
)


test_chained_rates = _scheduled(
    lambda optimizer: rates.ChainedScheduler([rates.ConstantLR(optimizer), rates.ExponentialLR(optimizer, 0.9)])
)


def test_rate_on_a_plateau(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.5)
    scheduler = rates.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for loss in passes(r, model, optimizer, 6):
        optimizer.step()
        scheduler.step(float(r.mean(loss)))
    return model, optimizer.param_groups[0]["lr"]


def test_clipping_by_norm(r: Run):
    (model, optimizer), norms = begin(r, torch.optim.SGD, lr=0.1), []
    for _ in passes(r, model, optimizer):
        with r.whole_gradients(optimizer):
            norms.append(clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
    return model, norms


def test_clipping_by_value(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.1)
    for _ in passes(r, model, optimizer):
        with r.whole_gradients(optimizer):
            clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
    return model


def test_clipping_without_synchronize(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1)
    for _ in passes(r, model, optimizer):
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def _accumulated(make, steps: int, parts: int, passes: int, **options):
    def script(r: Run):
        model, optimizer = begin(r, make, passes=passes, **options)
        for step, (x, y) in enumerate(r.data(steps)):
            (loss_of(model, x, y) / parts).backward()
            if step % parts == parts - 1 or step == steps - 1:
                optimizer.step()
                optimizer.zero_grad()
        return model

    return script


test_accumulation = _accumulated(torch.optim.AdamW, 6, 2, passes=2, lr=0.01)


test_accumulation_with_a_rest = _accumulated(torch.optim.AdamW, 6, 4, passes=4, lr=0.01)


test_accumulation_that_nobody_announced = _accumulated(torch.optim.SGD, 9, 3, passes=1, lr=0.1, momentum=0.9)


def test_gradients_that_are_never_zeroed(r: Run):
    return train(r, *begin(r, torch.optim.SGD, lr=0.01), zero=lambda: None)


def test_zeroed_and_kept(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    return train(r, model, optimizer, zero=lambda: optimizer.zero_grad(set_to_none=False))


def test_zeroed_by_the_module(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    return train(r, model, optimizer, zero=model.zero_grad)


def test_pass_that_is_thrown_away(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    for step, _ in enumerate(passes(r, model, optimizer, 6)):
        if step != 3:
            optimizer.step()
    return model


def test_step_without_a_pass(r: Run):
    model, optimizer = begin(r, torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    train(r, model, optimizer, 3)
    optimizer.zero_grad()
    optimizer.step()
    return train(r, model, optimizer, 2)


def test_two_losses(r: Run):
    model, optimizer = begin(r, torch.optim.AdamW, lr=0.01)
    for x, y in r.data(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        model(x).square().mean().backward()
        optimizer.step()
    return model


def test_retained_graph(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1)
    for x, y in r.data(4):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        optimizer.step()
    return model


def test_gradient_penalty(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    for x, y in r.data(4):
        optimizer.zero_grad()
        x.requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (loss_of(model, x, y) + grad.square().sum(1).mean()).backward()
        optimizer.step()
    return model


def test_gradient_hooks(r: Run):
    model = mlp()
    model[0].weight.register_hook(lambda grad: grad * 2)
    model[2].bias.register_hook(lambda grad: grad.clamp(-0.5, 0.5) * 0 + 0.1)
    return train(r, *begin(r, torch.optim.SGD, model, lr=0.1))


def test_step_hooks(r: Run):
    model, calls = mlp(), []
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    optimizer.register_step_post_hook(lambda *_: calls.append(2))
    return train(r, model, optimizer), calls


def test_gradients_read_after_the_step(r: Run):
    model, seen = mlp(), []
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in passes(r, model, optimizer, 3):
        with r.whole_gradients(optimizer):
            seen += [param.grad.clone() for param in model.parameters()]
            optimizer.step()
    return model, seen


def test_only_some_are_stepped_on(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model[2].parameters(), lr=0.1), model[2])
    return train(r, model, optimizer)


def test_loss_on_one_rank_is_zero(r: Run):
    model, optimizer = begin(r, torch.optim.Adam, lr=0.01)
    mask = r.part(torch.arange(12) % 3 == 0).float()
    return train(r, model, optimizer, 4, lambda x, y: ((model(x) - y).square().mean(1) * mask).mean())
