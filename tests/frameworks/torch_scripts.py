"""Ordinary training scripts with PyTorch: optimizers, learning rates, gradients. `torch_oracle` runs them."""

import torch
from frameworks.torch_oracle import Run, loss_of, mlp, run, train, trained
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler as rates

__all__ = ["run"]


def script_sgd(r: Run):
    return trained(r, torch.optim.SGD, lr=0.1)


def script_momentum_and_decay(r: Run):
    return trained(r, torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, dampening=0.1)


def script_nesterov(r: Run):
    return trained(r, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)


def script_adam(r: Run):
    return trained(r, torch.optim.Adam, lr=0.01)


def script_adam_with_l2(r: Run):
    return trained(r, torch.optim.Adam, lr=0.01, weight_decay=0.1)


def script_adamw(r: Run):
    return trained(r, torch.optim.AdamW, lr=0.01, weight_decay=0.1)


def script_amsgrad(r: Run):
    return trained(r, torch.optim.AdamW, lr=0.01, amsgrad=True)


def script_rmsprop(r: Run):
    return trained(r, torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True)


def script_adagrad(r: Run):
    return trained(r, torch.optim.Adagrad, lr=0.05, lr_decay=0.1)


def script_adadelta(r: Run):
    return trained(r, torch.optim.Adadelta, lr=1.0)


def script_adamax(r: Run):
    return trained(r, torch.optim.Adamax, lr=0.01)


def script_nadam(r: Run):
    return trained(r, torch.optim.NAdam, lr=0.01)


def script_radam(r: Run):
    model = mlp()
    return train(r, model, r.wrap(torch.optim.RAdam(model.parameters(), lr=0.01), model), steps=8)


def script_asgd(r: Run):
    return trained(r, torch.optim.ASGD, lr=0.05)


def script_rprop(r: Run):
    model = mlp(dtype=torch.float64)
    optimizer = r.wrap(torch.optim.Rprop(model.parameters(), lr=0.01), model)
    return train(r, model, optimizer, dtype=torch.float64)


def script_adafactor(r: Run):
    return trained(r, torch.optim.Adafactor, lr=0.01)


def script_low_precision_muon(r: Run):
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
    """What torch's optimizers call once or several times a step."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    return closure


def script_lbfgs(r: Run):
    model = mlp(dtype=torch.float64)
    optimizer = r.wrap(torch.optim.LBFGS(model.parameters(), max_iter=4), model)
    for x, y in r.data(3, dtype=torch.float64):
        optimizer.step(closure_of(model, optimizer, x, y))
    return model


def script_lbfgs_with_a_line_search(r: Run):
    model = mlp(dtype=torch.float64)
    optimizer = r.wrap(torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe"), model)
    for x, y in r.data(2, dtype=torch.float64):
        optimizer.step(closure_of(model, optimizer, x, y))
    return model


def script_closure_of_adam(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    losses = []
    for x, y in r.data(4):
        losses.append(r.mean(optimizer.step(closure_of(model, optimizer, x, y))))
    return model, losses


def script_sparse_adam(r: Run):
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = r.wrap(torch.optim.SparseAdam(model.parameters(), lr=0.1), model)
    return train(r, model, optimizer, 4, lambda x, _: model((x[:, 0].abs() * 5).long()).square().sum(1).mean())


def script_sparse_embedding_of_sgd(r: Run):
    model = nn.EmbeddingBag(20, 4, sparse=True)
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    return train(r, model, optimizer, 4, lambda x, _: model((x.abs() * 5).long()).square().sum(1).mean())


def script_groups(r: Run):
    model = mlp()
    decayed = [
        {"params": model[0].parameters(), "weight_decay": 0.1, "lr": 0.05},
        {"params": model[2].parameters()},
    ]
    return train(r, model, r.wrap(torch.optim.AdamW(decayed, lr=0.01, weight_decay=0.0), model))


def script_groups_by_name(r: Run):
    model = mlp()
    return train(r, model, r.wrap(torch.optim.SGD(model.named_parameters(), lr=0.05), model))


def script_group_changed_by_hand(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    for step, (x, y) in enumerate(r.data(6)):
        optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
        optimizer.param_groups[0]["betas"] = (0.5, 0.9) if step > 2 else (0.9, 0.999)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def script_added_group(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9), model[0])
    train(r, model, optimizer, 2)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
    return train(r, model, optimizer, 4)


def script_maximize(r: Run):
    return trained(r, torch.optim.SGD, lr=0.01, maximize=True)


def script_foreach(r: Run):
    return trained(r, torch.optim.AdamW, lr=0.01, foreach=True)


def script_not_foreach(r: Run):
    return trained(r, torch.optim.AdamW, lr=0.01, foreach=False)


def script_fused(r: Run):
    return trained(r, torch.optim.AdamW, lr=0.01, fused=True)


def script_differentiable(r: Run):
    model = mlp()
    params = [param.detach().requires_grad_() for param in model.parameters()]
    optimizer = r.wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9, differentiable=False), model)
    for x, y in r.data(3):
        optimizer.zero_grad()
        hidden = torch.tanh(nn.functional.linear(x, params[0], params[1]))
        nn.functional.mse_loss(nn.functional.linear(hidden, params[2], params[3]), y).backward()
        optimizer.step()
    return params


def script_rate_as_a_tensor(r: Run):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    optimizer = r.wrap(optimizer, model)
    train(r, model, optimizer, 2)
    optimizer.param_groups[0]["lr"].fill_(0.05)
    return train(r, model, optimizer, 2)


def _scheduled(r: Run, make, steps: int = 6, **options):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options), model)
    scheduler = make(optimizer)
    seen = []
    for x, y in r.data(steps):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return model, seen


def script_step_rate(r: Run):
    return _scheduled(r, lambda optimizer: rates.StepLR(optimizer, 2, 0.5))


def script_one_cycle(r: Run):
    return _scheduled(r, lambda optimizer: rates.OneCycleLR(optimizer, 0.2, total_steps=7))


def script_cyclic_rate(r: Run):
    return _scheduled(r, lambda optimizer: rates.CyclicLR(optimizer, 0.01, 0.1, 2))


def script_cosine_rate(r: Run):
    return _scheduled(r, lambda optimizer: rates.CosineAnnealingLR(optimizer, 6))


def script_warm_restarts(r: Run):
    return _scheduled(r, lambda optimizer: rates.CosineAnnealingWarmRestarts(optimizer, 3))


def script_lambda_rate(r: Run):
    return _scheduled(r, lambda optimizer: rates.LambdaLR(optimizer, lambda step: 1 / (step + 1)))


def script_sequential_rates(r: Run):
    def make(optimizer):
        parts = [rates.LinearLR(optimizer, 0.1, total_iters=3), rates.ExponentialLR(optimizer, 0.9)]
        return rates.SequentialLR(optimizer, parts, [3])

    return _scheduled(r, make)


def script_chained_rates(r: Run):
    def make(optimizer):
        return rates.ChainedScheduler([rates.ConstantLR(optimizer), rates.ExponentialLR(optimizer, 0.9)])

    return _scheduled(r, make)


def script_rate_on_a_plateau(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)
    scheduler = rates.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for x, y in r.data(6):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        scheduler.step(float(r.mean(loss)))
    return model, optimizer.param_groups[0]["lr"]


def script_clipping_by_norm(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    norms = []
    for x, y in r.data(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        with r.whole_gradients(optimizer):
            norms.append(clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
    return model, norms


def script_clipping_by_value(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    for x, y in r.data(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        with r.whole_gradients(optimizer):
            clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
    return model


def script_clipping_without_synchronize(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for x, y in r.data(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def script_accumulation(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, passes=2)
    for step, (x, y) in enumerate(r.data(6)):
        (loss_of(model, x, y) / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def script_accumulation_with_a_rest(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, passes=4)
    for step, (x, y) in enumerate(r.data(6)):
        (loss_of(model, x, y) / 4).backward()
        if step % 4 == 3 or step == 5:
            optimizer.step()
            optimizer.zero_grad()
    return model


def script_accumulation_that_nobody_announced(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    for step, (x, y) in enumerate(r.data(9)):
        (loss_of(model, x, y) / 3).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def script_gradients_that_are_never_zeroed(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
    for x, y in r.data(5):
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def script_zeroed_and_kept(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for x, y in r.data(5):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def script_zeroed_by_the_module(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for x, y in r.data(5):
        model.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def script_pass_that_is_thrown_away(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for step, (x, y) in enumerate(r.data(6)):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        if step != 3:
            optimizer.step()
    return model


def script_step_without_a_pass(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), model)
    train(r, model, optimizer, 3)
    optimizer.zero_grad()
    optimizer.step()
    return train(r, model, optimizer, 2)


def script_two_losses(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    for x, y in r.data(5):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        model(x).square().mean().backward()
        optimizer.step()
    return model


def script_retained_graph(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for x, y in r.data(4):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        optimizer.step()
    return model


def script_gradient_penalty(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for x, y in r.data(4):
        optimizer.zero_grad()
        x.requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (loss_of(model, x, y) + grad.square().sum(1).mean()).backward()
        optimizer.step()
    return model


def script_gradient_hooks(r: Run):
    model = mlp()
    model[0].weight.register_hook(lambda grad: grad * 2)
    model[2].bias.register_hook(lambda grad: grad.clamp(-0.5, 0.5) * 0 + 0.1)
    return train(r, model, r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model))


def script_step_hooks(r: Run):
    model, calls = mlp(), []
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    optimizer.register_step_post_hook(lambda *_: calls.append(2))
    return train(r, model, optimizer), calls


def script_gradients_read_after_the_step(r: Run):
    model, seen = mlp(), []
    optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for x, y in r.data(3):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        with r.whole_gradients(optimizer):
            seen += [param.grad.clone() for param in model.parameters()]
            optimizer.step()
    return model, seen


def script_only_some_are_stepped_on(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.AdamW(model[2].parameters(), lr=0.1), model[2])
    return train(r, model, optimizer)


def script_loss_on_one_rank_is_zero(r: Run):
    model = mlp()
    optimizer = r.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    mask = r.part(torch.arange(12) % 3 == 0).float()
    return train(r, model, optimizer, 4, lambda x, y: ((model(x) - y).square().mean(1) * mask).mean())
