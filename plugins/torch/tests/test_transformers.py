"""Checks of ringtrain.transformers, run on every rank of a world: its Trainer does what transformers' does in one
process on the joined batches."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
import transformers_model
from support.deadlines import patient
from support.ports import free_addresses
from transformers_model import ALONE, losses, model, trainer_of

import ringtrain.torch as hvd
from ringtrain.transformers import Trainer

RUN_IN = {"framework": "ringtrain.transformers", "ranks": [1, 3], "needs": ["transformers", "accelerate"]}

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
_address = hvd.broadcast_object(free_addresses(1)[0] if RANK == 0 else None, 0).rsplit(":", 1)
if SIZE > 1:  # what the agent gives a rank
    values = (RANK, RANK, SIZE, SIZE, *_address)
    os.environ |= dict(zip(RANKS, map(str, values), strict=True))


def distributed(optimizer, net):
    return hvd.DistributedOptimizer(optimizer, net.named_parameters())


def distributed_twice(optimizer, net):
    return hvd.DistributedOptimizer(optimizer, net.named_parameters(), backward_passes_per_step=2)


def agree(trainer, expected, tolerance: float = 2e-5) -> None:
    for (name, ours), theirs in zip(trainer.model.state_dict().items(), expected["weights"].values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(losses(trainer), expected["losses"], atol=2e-3)


def alone(name):
    """Return the results of transformers' Trainer in one process, which tests with worlds of all sizes share."""
    folder = Path(tempfile.gettempdir()) / "alone"
    if RANK == 0 and not folder.exists():
        making = folder.with_name("making")
        making.mkdir(exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name not in RANKS}
        subprocess.run([sys.executable, transformers_model.__file__, making], env=env, check=True, timeout=patient(300))
        making.rename(folder)
    hvd.barrier()
    return torch.load(folder / f"{name}.pt", weights_only=False)


def shared_folder() -> str:
    return hvd.broadcast_object(tempfile.mkdtemp(), 0)


def test_a_trainer_trains_like_one_process():
    """Training uses the Trainer's clipping and schedule, and continues from a checkpoint to the same weights."""
    arguments = {**ALONE["clipped"][0], "save_steps": 9}
    expected = alone("clipped")
    for wrap in (hvd.HostOptimizer, distributed):
        folder = shared_folder()
        trainer = trainer_of(Trainer, folder, SIZE, arguments, wrap=wrap)
        trainer.train()
        agree(trainer, expected)
        resumed = trainer_of(Trainer, folder, SIZE, arguments, wrap=wrap)
        resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-9")
        assert resumed.state.global_step == trainer.state.global_step == 18
        agree(resumed, {"weights": trainer.model.state_dict(), "losses": losses(trainer)}, 1e-6)


def test_a_trainer_accumulates_gradients():
    """A rest of an epoch included."""
    arguments = {**ALONE["accumulated"][0], "save_strategy": "no"}
    expected = alone("accumulated")
    for wrap in (hvd.HostOptimizer, distributed_twice):
        trainer = trainer_of(Trainer, shared_folder(), SIZE, arguments, wrap=wrap)
        trainer.train()
        agree(trainer, expected)


def test_a_trainer_trains_twice_and_without_clipping():
    """The norm is logged all the same; the second training has the optimizer of the first."""
    arguments = {**ALONE["twice"][0], "save_strategy": "no"}
    expected = alone("twice")
    for wrap in (hvd.HostOptimizer, distributed):
        trainer = trainer_of(Trainer, shared_folder(), SIZE, arguments, wrap=wrap)
        trainer.train()
        first = trainer._own
        trainer.train()
        assert trainer._own is first
        agree(trainer, expected)


def test_a_script_gives_its_own_optimizer():
    """Torch's own, or one that reduces already."""
    arguments = {"save_strategy": "no"}
    expected = alone("as usual")
    for made in (lambda optimizer, net: optimizer, distributed, hvd.HostOptimizer):
        net = model()
        plain = trainer_of(transformers.Trainer, shared_folder(), SIZE, arguments, net=net).create_optimizer()
        given = made(plain, net)
        trainer = trainer_of(Trainer, shared_folder(), SIZE, arguments, net=net, optimizers=(given, None))
        trainer.train()
        agree(trainer, expected)


def test_torch_goes_on_from_its_checkpoint():
    """A checkpoint has the whole state, as torch's optimizers take it."""
    folder = shared_folder()
    trainer_of(Trainer, folder, SIZE, {"save_steps": 9}).train()
    state = torch.load(f"{folder}/checkpoint-9/optimizer.pt", weights_only=True)
    net = model()
    groups = [{"params": []}, {"params": []}]
    for name, param in net.named_parameters():
        groups["bias" in name or "ln" in name]["params"].append(param)
    plain = torch.optim.AdamW(groups)
    plain.load_state_dict({key: state[key] for key in ("state", "param_groups")})
    for param, own in plain.state.items():
        assert (own["exp_avg"].shape, int(own["step"])) == (param.shape, 9)
