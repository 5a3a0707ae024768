"""Checks of what a training goes on from after a restart, run on every rank of a world."""

import random
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_training import RANK, agree, batches

import ringtrain.torch as hvd
from ringtrain.checkpoint import Checkpoints, ShardedCheckpoints

RUN_IN = {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}}


def everywhere() -> Path:
    """A folder that all ranks have; rank 0 removes it."""
    return Path(hvd.broadcast_object(tempfile.mkdtemp() if RANK == 0 else None, 0))


def test_states_of_torch_come_back_as_they_were():
    """Every dtype, integer keys, tuples, ordered dictionaries and what modules note in them."""
    folder = everywhere()
    torch.manual_seed(0)  # what comes back is rank 0's
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), betas=(0.5, 0.6))
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    dtypes = (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.int8, torch.float8_e4m3fn)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "tensors": {str(dtype): torch.arange(4).view(2, 2).to(dtype) for dtype in dtypes},
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "torch": (torch.Size([2, 3]), torch.float16, torch.device("cpu"), torch.zeros(()), torch.zeros(0, 3)),
        7: OrderedDict(a=nn.Parameter(torch.ones(1)).detach()),
        "generator": torch.get_rng_state(),
    }
    for checkpoints in (Checkpoints(folder / "plain"), ShardedCheckpoints((folder / "shards").as_uri())):
        checkpoints.save(1, state)
        found = checkpoints.latest().state
        assert repr(found) == repr(state), checkpoints
        assert found["model"]._metadata == state["model"]._metadata
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).load_state_dict(found["model"])
        torch.optim.AdamW(model.parameters()).load_state_dict(found["optimizer"])
    with pytest.raises(ValueError, match=r"(?s)checkpoint: sparse is Tensor.*dense tensors"):
        Checkpoints(folder / "plain").save(2, {"sparse": torch.eye(2).to_sparse()}) if RANK == 0 else _refused()
    hvd.barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def _refused():
    raise ValueError("checkpoint: sparse is Tensor: of rank 0, which writes; expected dense tensors")


def parts(kind: str):
    """A model with batch normalisation, dropout, an optimizer of each kind, a schedule and a scaler."""
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(6, 8), hvd.SyncBatchNorm(8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2))
    hvd.broadcast_parameters(model.state_dict(), 0)
    made = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.05),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "amsgrad": lambda: torch.optim.Adam(model.parameters(), lr=0.05, amsgrad=True),
    }[kind]()
    optimizer = hvd.DistributedOptimizer(made, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return hvd.TrainingState(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, step=0)


def train(state, until: int):
    for x, y in batches(RANK, 10)[state.step : until]:
        state.optimizer.zero_grad()
        noise = torch.rand(4, 6) * random.random() * float(np.random.rand())
        state.scaler.scale(nn.functional.mse_loss(state.model(x + noise), y)).backward()
        state.optimizer.synchronize()
        with state.optimizer.skip_synchronize():
            state.scaler.step(state.optimizer)
        state.scaler.update()
        state.scheduler.step()
        state.step += 1
    return state


def test_a_training_that_goes_on_after_a_restart():
    """Weights, statistics, schedule, scaler and dropout equal those of an undisturbed run."""
    for kind in ("adamw", "sgd", "amsgrad"):
        folder = everywhere()
        random.seed(RANK), np.random.seed(RANK)
        train(whole := parts(kind), 10)
        random.seed(RANK), np.random.seed(RANK)
        first = train(parts(kind), 4)
        Checkpoints(folder).save(4, first.state_dict())
        random.seed(99), np.random.seed(99)
        second = parts(kind)
        second.load_state_dict(Checkpoints(folder).latest().state)
        assert second.step == 4
        train(second, 10)
        agree(second.model, whole.model, 0)
        assert second.scheduler.get_last_lr() == whole.scheduler.get_last_lr()
        assert second.scaler.state_dict() == whole.scaler.state_dict()
        hvd.barrier()
        if RANK == 0:
            shutil.rmtree(folder)


def test_a_training_state_of_other_parts():
    """The error names missing and unknown parts."""
    state = hvd.TrainingState(model=nn.Linear(1, 1), epoch=0)
    with pytest.raises(ValueError, match=r"lacks \['epoch'\] and has the unknown parts \['batch'\]"):
        state.load_state_dict({"model": {}, "batch": 1, "random": {}})
    with pytest.raises(ValueError, match="'state_dict' is an attribute"):
        hvd.TrainingState(state_dict=1)
    with pytest.raises(ValueError, match="the state is a list"):
        state.load_state_dict([])
