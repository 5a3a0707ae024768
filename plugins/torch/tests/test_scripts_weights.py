"""Scripts that read, write, move and exchange weights, or groups of them. `torch_oracle` runs them."""

import copy

import torch
from torch import multiprocessing, nn
from torch_oracle import Run, begin, loss_of, mlp, passes, train

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

INPUTS = torch.linspace(-1, 1, 60).view(10, 6)


def wide():
    """Layers that take longer to update than a script takes from `backward()` to `step()`."""
    return nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 2))


def _between(use):
    """Return the result of `use`, which is called with the model between `backward()` and `step()`, and the new
    weights."""

    def script(r: Run):
        (model, optimizer), seen = begin(r, torch.optim.SGD, wide(), lr=0.05, momentum=0.9), []
        for _ in passes(r, model, optimizer, 8):
            seen.append(use(model))
            optimizer.step()
        return model, [value for value in seen if value is not None]

    return script


def _decay(model):
    for param in model.parameters():
        param.data.mul_(0.9)


def _clamp(model):
    with torch.no_grad():
        for param in model.parameters():
            param.clamp_(-0.05, 0.05)


def _forward(model):
    with torch.no_grad():
        return model(INPUTS)


def _saved(model):
    return {name: value.double().sum() for name, value in copy.deepcopy(model.state_dict()).items()}


test_decay_by_hand_before_the_step = _between(_decay)

test_clamp_before_the_step = _between(_clamp)

test_norm_of_weights_before_the_step = _between(lambda model: nn.utils.parameters_to_vector(model.parameters()).norm())

test_forward_pass_before_the_step = _between(_forward)

test_saved_before_the_step = _between(_saved)


def _moved(move):
    """Weights, and what `move`, called with the model after the fourth step, returns: memory that they are in."""

    def script(r: Run):
        (model, optimizer), held = begin(r, torch.optim.AdamW, lr=0.05), None
        for step, _ in enumerate(passes(r, model, optimizer, 10)):
            optimizer.step()
            if step == 3:
                optimizer.zero_grad()
                held = move(model)
        return model, [] if held is None else held

    return script


def _flattened(model):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())  # these are views of it
    return flat


test_weights_in_shared_memory = _moved(lambda model: [param.data for param in model.share_memory().parameters()])

test_weights_through_a_queue = _moved(
    lambda model: multiprocessing.get_context("spawn").SimpleQueue().put(model.state_dict())
)

test_weights_in_a_flat_vector = _moved(_flattened)


def test_weights_rounded_around_a_pass(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1)
    for x, y in r.data(8):
        optimizer.zero_grad()
        real = [param.data for param in model.parameters()]
        for param in model.parameters():
            param.data = (param.data * 4).round() / 4
        loss_of(model, x, y).backward()
        for param, value in zip(model.parameters(), real, strict=True):
            param.data = value
        optimizer.step()
    return model


@torch.jit.script
def _scripted_norm(tensor: torch.Tensor):
    return tensor.norm()


def _read(read):
    def script(r: Run):
        (model, optimizer), seen = begin(r, torch.optim.SGD, lr=0.1), []
        for _ in passes(r, model, optimizer, 5):
            with r.whole_gradients(optimizer):
                seen.append(read(model[0].weight.grad))
                optimizer.step()
        return model, seen

    return script


test_gradient_copied_by_torch_tensor = _read(lambda grad: torch.tensor(grad))

test_gradient_read_by_a_script = _read(_scripted_norm)

test_gradient_read_by_vmap = _read(lambda grad: torch.func.vmap(lambda row: row.square().sum())(grad))

test_gradient_read_as_an_array = _read(lambda grad: torch.from_numpy(grad.numpy().copy()))


def _groups(change, two=False):
    """Training whose groups `change`, called with the model and the optimizer, exchanges after five steps."""

    def script(r: Run):
        model = mlp()
        layers = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.03}]
        make = torch.optim.AdamW(layers if two else model.parameters(), lr=0.05, eps=1e-3)
        optimizer = r.wrap(make, model)
        for step, _ in enumerate(passes(r, model, optimizer, 12)):
            optimizer.step()
            if step in (4, 8):
                optimizer.zero_grad()
                torch.manual_seed(step)
                change(model, optimizer)
        return model

    return script


def _take_out_or_put_back(model, optimizer):
    group = optimizer.param_groups[0]
    kept = [param for param in group["params"] if param is not model[0].weight]
    group["params"] = kept if len(kept) < len(group["params"]) else [model[0].weight, *kept]


def _new_head(model, optimizer):
    model[2] = nn.Linear(8, 2)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def _drop_last(model, optimizer):
    if len(optimizer.param_groups) > 1:
        del optimizer.param_groups[1]


def _new_list(model, optimizer):
    optimizer.param_groups = [{**group, "lr": group["lr"] / 2} for group in optimizer.param_groups]


def _move_between_groups(model, optimizer):
    first, second = optimizer.param_groups
    second["params"].append(first["params"].pop())


test_parameter_out_of_a_group_and_back = _groups(_take_out_or_put_back)

test_new_head_in_a_group = _groups(_new_head)

test_group_deleted = _groups(_drop_last, two=True)

test_list_of_groups_replaced = _groups(_new_list, two=True)

test_parameter_in_another_group = _groups(_move_between_groups, two=True)


def test_parameter_out_before_the_step(r: Run):
    model, optimizer = begin(r, torch.optim.SGD, lr=0.1, momentum=0.9)
    for step, _ in enumerate(passes(r, model, optimizer, 6)):
        if step == 3:
            optimizer.param_groups[0]["params"].pop(2)
        optimizer.step()
    return model


def test_hooks_of_the_wrapped_optimizer(r: Run):
    model, calls = mlp(), []
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    plain.register_step_pre_hook(lambda *_: calls.append(1))
    plain.register_state_dict_post_hook(lambda _, state: {**state, "mine": 7})
    optimizer = r.wrap(plain, model)
    plain.register_step_post_hook(lambda *_: calls.append(2))
    train(r, model, optimizer)
    return model, calls, optimizer.state_dict()["mine"]


def test_step_counts_set_by_hand(r: Run):
    model, optimizer = begin(r, torch.optim.AdamW, lr=0.05, eps=1e-3)
    for count in (0.0, 100.0):
        train(r, model, optimizer, 4)
        state = optimizer.state_dict()
        for entry in state["state"].values():
            entry["step"] = torch.tensor(count)
            entry["exp_avg"] = torch.zeros_like(entry["exp_avg"])
        optimizer.load_state_dict(state)
    train(r, model, optimizer, 4)
    return model, [entry["step"] for entry in optimizer.state_dict()["state"].values()]
