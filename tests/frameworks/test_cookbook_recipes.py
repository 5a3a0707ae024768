"""Runs the recipes of docs/cookbook.md in a rank, and checks a fact of each.

A world of one rank leaves its weights in a file; a world of two compares its own with them, since a step has the
same samples in both.
"""

import contextlib
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_training import same_everywhere

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.optim import Cosine, Warmup

# The world of one rank comes first: that of two compares its weights with those that the first has left in a file.
RUN_IN = {"framework": "torch", "ranks": [1, 2]}

PAGE = (Path(__file__).parents[2] / "docs/cookbook.md").read_text()
BEGINNING = "the_beginning_of_every_recipe"
RANK, SIZE = hvd.rank(), hvd.size()
STEPS = 6  # of an epoch
Names = dict[str, Any]


def recipes(page: str = PAGE) -> dict[str, str]:
    """The program under each heading of the page that has one, by the heading's words."""
    found = {}
    for section in page.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        found[re.sub(r"\W+", "_", heading.lower())] = "\n".join(blocks)
    return {name: text for name, text in found.items() if text}


def run(name: str, change: Callable[[Names], None] = lambda names: None) -> Names:
    """Run the beginning, make `change` in its variables, run the recipe and return the variables."""
    names: Names = {"__name__": "__main__"}
    exec(compile(recipes()[BEGINNING], "the beginning", "exec"), names)
    change(names)
    exec(compile(recipes()[name], name, "exec"), names)
    return names


def as_on_one_rank(name: str, *models: nn.Module, tolerance: float = 1e-5, **facts: object) -> None:
    """All ranks have the same weights, and those of one rank on the same samples; `facts` are the same, too."""
    for number, model in enumerate(models):
        model.state_dict()  # returns when the weights of the last step are there
        same_everywhere(model)
        file = Path(tempfile.gettempdir()) / f"{name}-{number}.pt"
        if SIZE == 1:
            torch.save({"weights": model.state_dict(), "facts": facts}, file)
            continue
        alone = torch.load(file)
        assert facts == alone["facts"]
        close(model.state_dict(), alone["weights"], tolerance)


def close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    for key, value in ours.items():
        np.testing.assert_allclose(value, theirs[key], rtol=tolerance, atol=tolerance, err_msg=key)


def as_in_torch(
    names: Names, epochs: int, step: Callable[[int, list[nn.Parameter], torch.optim.SGD], None], lr: float = 0.1
) -> None:
    """The model's weights are those of plain torch in one process. `step` is what follows `backward()`."""
    plain = {name: names[name] for name in ("torch", "nn", "rt", "hvd")}
    beginning = recipes()[BEGINNING].replace("16 // rt.size()", "16, rank=0, size=1")
    exec(beginning, plain)
    model = plain["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        for number, (x, y) in enumerate(plain["batches"](epoch)):
            plain["loss_of"](model(x), y).backward()
            step(epoch * STEPS + number, list(model.parameters()), optimizer)
    close(names["model"].state_dict(), model.state_dict())


def stepped(optimizer: torch.optim.SGD) -> None:
    optimizer.step()
    optimizer.zero_grad()


@contextlib.contextmanager
def shared_folder() -> Iterator[None]:
    """Work in an empty folder that all ranks have."""
    before = Path.cwd()
    os.chdir(hvd.broadcast_object(tempfile.mkdtemp(), 0))
    try:
        yield
    finally:
        os.chdir(before)


def test_clip_gradients():
    names = run("clip_gradients")
    assert names["optimizer"].gradient_norm > 0

    def step(_: int, params: list[nn.Parameter], optimizer: torch.optim.SGD) -> None:
        nn.utils.clip_grad_norm_(params, 0.5)
        stepped(optimizer)

    as_in_torch(names, 2, step)
    as_on_one_rank("clip_gradients", names["model"])


def test_clip_gradients_with_torch_s_functions():
    names = run("clip_gradients_with_torch_s_functions")

    def step(_: int, params: list[nn.Parameter], optimizer: torch.optim.SGD) -> None:
        nn.utils.clip_grad_value_(params, 0.05)
        stepped(optimizer)

    as_in_torch(names, 2, step)
    as_on_one_rank("clip_gradients_with_torch_s_functions", names["model"])


def test_change_the_learning_rate():
    names = run("change_the_learning_rate")
    schedule = Warmup(4, start=0.0, after=Cosine(3 * STEPS - 4))
    assert names["rates"] == [0.2 * schedule(step) for step in range(3 * STEPS)]

    def step(number: int, _: list[nn.Parameter], optimizer: torch.optim.SGD) -> None:
        optimizer.param_groups[0]["lr"] = names["rates"][number]
        stepped(optimizer)

    as_in_torch(names, 3, step)
    as_on_one_rank("change_the_learning_rate", names["model"])


def test_change_the_learning_rate_with_torch_s_schedulers():
    names = run("change_the_learning_rate_with_torch_s_schedulers")
    alone = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(alone, max_lr=0.2, total_steps=3 * STEPS)

    def step(_: int, __: list[nn.Parameter], optimizer: torch.optim.SGD) -> None:
        for key in ("lr", "momentum"):
            optimizer.param_groups[0][key] = alone.param_groups[0][key]
        stepped(optimizer)
        alone.step()
        scheduler.step()

    as_in_torch(names, 3, step)
    as_on_one_rank("change_the_learning_rate_with_torch_s_schedulers", names["model"])


def test_accumulate_gradients():
    names = run("accumulate_gradients")
    assert names["optimizer"].updates == 2 * STEPS // 4

    def step(number: int, params: list[nn.Parameter], optimizer: torch.optim.SGD) -> None:
        if number % 4 == 3:
            for param in params:
                param.grad /= 4
            stepped(optimizer)

    as_in_torch(names, 2, step)
    as_on_one_rank("accumulate_gradients", names["model"])


def test_train_in_bf16():
    names = run("train_in_bf16")
    assert {param.dtype for param in names["model"].parameters()} == {torch.float32}
    as_on_one_rank("train_in_bf16", names["model"], tolerance=2e-2)


def test_train_in_fp16_with_gradscaler():
    def overflow(names: Names) -> None:
        names["targets"][names["shard"].order(0)[15]] = 1e4  # of the last rank, in the first step

    names = run("train_in_fp16_with_gradscaler", overflow)
    skipped = int(np.log2(2.0**16 / names["scaler"].get_scale()))
    assert skipped == 2, "both epochs have the sample that overflows"
    as_on_one_rank("train_in_fp16_with_gradscaler", names["model"], tolerance=2e-2, skipped=skipped)


def test_compile_the_model():
    torch.compiler.set_default_backend("aot_eager")  # all of torch.compile but its C++ compiler, which takes 10 s
    try:
        names = run("compile_the_model")
    finally:
        torch.compiler.set_default_backend(None)
    as_in_torch(names, 2, lambda _, __, optimizer: stepped(optimizer))
    as_on_one_rank("compile_the_model", names["model"])


def test_load_samples_in_worker_processes():
    multiprocessing.current_process().daemon = False  # as in a rank that no test started: it may have children
    names = run("load_samples_in_worker_processes")
    as_in_torch(names, 2, lambda _, __, optimizer: stepped(optimizer))
    as_on_one_rank("load_samples_in_worker_processes", names["model"])


def test_use_torch_s_distributedsampler():
    names = run("use_torch_s_distributedsampler")
    assert names["optimizer"].updates == 2 * STEPS
    as_on_one_rank("use_torch_s_distributedsampler", names["model"])


class Interrupted(Exception):
    """Ends a training."""


class EndingShard:
    """A shard of which a training gets so many batches, over all epochs."""

    def __init__(self, shard: rt.data.Shard, batches: int) -> None:
        self.shard = shard
        self.left = batches

    def epoch(self, epoch: int, consumed: int) -> Iterator[rt.data.Batch]:
        for batch in self.shard.epoch(epoch, consumed=consumed):
            if self.left == 0:
                raise Interrupted
            self.left -= 1
            yield batch


def test_restart_in_the_middle_of_an_epoch():
    def interrupt(names: Names) -> None:
        names["shard"] = EndingShard(names["shard"], STEPS + 4)  # two steps after the second checkpoint

    with shared_folder():
        if SIZE > 1:
            with pytest.raises(Interrupted):
                run("restart_in_the_middle_of_an_epoch", interrupt)
        names = run("restart_in_the_middle_of_an_epoch")
    assert names["begin"] == (0 if SIZE == 1 else 1)
    assert names["optimizer"].updates == 3 * STEPS
    as_on_one_rank("restart_in_the_middle_of_an_epoch", names["model"], tolerance=1e-4)


def test_restart_with_all_that_a_training_has():
    name = "restart_with_all_that_a_training_has"

    def interrupt(names: Names) -> None:
        names["shard"] = EndingShard(names["shard"], STEPS + 5)

    with shared_folder():
        if SIZE > 1:
            with pytest.raises(Interrupted):
                run(name, interrupt)
        names = run(name)
    rates = names["scheduler"].get_last_lr()
    as_on_one_rank(name, names["net"], tolerance=1e-3, rates=rates, updates=names["scheduler"].last_epoch)


def test_evaluate_on_all_ranks():
    names = run("evaluate_on_all_ranks")
    with torch.no_grad():
        whole = names["loss_of"](names["model"](names["features"]), names["targets"]).item()
    np.testing.assert_allclose(names["value"], whole, rtol=1e-6)
    assert hvd.allgather_object(names["value"]) == [names["value"]] * SIZE


def test_stop_early_all_ranks_together():
    names = run("stop_early_all_ranks_together")
    assert 2 < names["epoch"] < 99
    assert hvd.allgather_object(names["epoch"]) == [names["epoch"]] * SIZE
    as_on_one_rank("stop_early_all_ranks_together", names["model"], epoch=names["epoch"])


def test_save_the_best_weights():
    with shared_folder():
        names = run("save_the_best_weights")
    with torch.no_grad():
        whole = names["loss_of"](names["model"](names["features"]), names["targets"]).item()
    np.testing.assert_allclose(names["best"], whole, rtol=1e-5)
    assert names["best"] < names["loss"], "the last epoch was the best: the recipe shows nothing"
    as_on_one_rank("save_the_best_weights", names["model"])


def test_fine_tune_with_frozen_layers():
    """The frozen layer is as it was after the first epoch, and trained after the second."""
    first_layer = []

    def record(names: Names) -> None:
        batches = names["batches"]

        def recording(epoch: int) -> Iterator[Any]:
            first_layer.append(names["model"][0].weight.detach().clone())
            yield from batches(epoch)

        names["batches"] = recording

    names = run("fine_tune_with_frozen_layers", record)
    assert torch.equal(*first_layer)
    assert not torch.equal(names["model"][0].weight, first_layer[0])
    as_on_one_rank("fine_tune_with_frozen_layers", names["model"])


def test_lbfgs():
    names = run("lbfgs")
    assert hvd.allgather_object(names["loss"].item()) == [names["loss"].item()] * SIZE
    assert names["loss"] < 0.05
    as_on_one_rank("lbfgs", names["model"], tolerance=1e-3)


def test_several_models_such_as_a_gan():
    names = run("several_models_such_as_a_gan")
    as_on_one_rank("several_models_such_as_a_gan", names["model"], names["critic"], tolerance=1e-4)
