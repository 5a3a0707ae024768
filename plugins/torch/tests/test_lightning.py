"""Checks of ringtrain.lightning, run on every rank of a world: trainers do what one does on joined batches."""

import itertools
import os
import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

import ringtrain.torch as hvd
from ringtrain.errors import ConfigurationError
from ringtrain.lightning import RingtrainStrategy

RUN_IN = {"framework": "ringtrain.lightning", "ranks": [1, 3], "needs": ["lightning"]}

hvd.init()
for _name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR"):  # Lightning alone would look for other ranks
    os.environ.pop(_name, None)
RANK, SIZE = hvd.rank(), hvd.size()
torch.manual_seed(0)
X, Y = torch.randn(6, 12, 6), torch.randn(6, 12, 2)


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Adversaries(L.LightningModule):
    """Two optimizers, by hand, with two backward passes of one before its step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net, self.critic = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, index):
        of_net, of_critic = self.optimizers()
        fake = self.net(batch[1])
        of_critic.zero_grad()
        self.manual_backward(nn.functional.softplus(-self.critic(batch[0])).mean())
        self.manual_backward(nn.functional.softplus(self.critic(fake.detach())).mean())
        of_critic.step()
        of_net.zero_grad()
        self.manual_backward(nn.functional.softplus(-self.critic(fake)).mean())
        of_net.step()

    def configure_optimizers(self):
        both = self.net.parameters(), self.critic.parameters()
        return [torch.optim.Adam(params, lr=0.02) for params in both], []


def fit(kind, alone: bool, epochs: int, ckpt=None, wrap=None, **options):
    """Train and return trainer and module. Batches are parts of the same joined ones, in the same order."""
    torch.manual_seed(1)
    module = kind()
    rows = slice(0, None) if alone else slice(RANK, None, SIZE)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:, rows], Y[:, rows]), batch_size=None)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        strategy="auto" if alone else "ringtrain" if wrap is None else RingtrainStrategy(wrap),
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader, ckpt_path=ckpt)
    return trainer, module


def agree(module, other, tolerance: float = 1e-5) -> None:
    for (name, ours), theirs in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


OPTIMIZERS = (None, hvd.HostOptimizer)


class Normalised(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


class Contrastive(Regression):
    """Model that compares each row with all rows of the whole batch."""

    def training_step(self, batch, index):
        left, right = self.net(batch[0]), self.net(batch[0].flip(1))
        left, right = (self.all_gather(one, sync_grads=True).reshape(-1, 2) for one in (left, right))
        return nn.functional.cross_entropy(left @ right.T, torch.arange(len(left)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)  # Adam would not tell a gradient from a part of it


def test_a_trainer_trains_like_one_process():
    """Training uses clipping, accumulation with a remainder, and schedules; the logged loss is the mean."""
    cases = (
        {},
        {"gradient_clip_val": 0.1},
        {"accumulate_grad_batches": 4},
        {"gradient_clip_algorithm": "value", "gradient_clip_val": 0.01},
    )
    for options, wrap in itertools.product(cases, OPTIMIZERS):
        alone, expected = fit(Regression, True, 3, **options)
        trainer, module = fit(Regression, False, 3, wrap=wrap, **options)
        assert isinstance(trainer.strategy, RingtrainStrategy)
        agree(module, expected)
        np.testing.assert_allclose(trainer.callback_metrics["loss"], alone.callback_metrics["loss"], rtol=1e-4)
        assert trainer.global_step == alone.global_step


def test_batch_normalisation_of_all_ranks():
    """`sync_batchnorm` counts, for weights and running statistics."""
    for wrap in OPTIMIZERS:
        agree(fit(Normalised, False, 3, wrap=wrap, sync_batchnorm=True)[1], fit(Normalised, True, 3)[1], 1e-4)


def test_a_loss_over_rows_of_all_ranks():
    """The gradient equals that of the whole batch."""
    for wrap in OPTIMIZERS:
        agree(fit(Contrastive, False, 3, wrap=wrap)[1], fit(Contrastive, True, 3)[1], 1e-4)


def test_reductions():
    """Logged metrics and reductions of a script are computed over all ranks."""

    class Logging(Regression):
        def training_step(self, batch, index):
            for fx in ("mean", "sum", "max", "min"):
                self.log(fx, float(RANK + 1), on_step=False, on_epoch=True, sync_dist=True, reduce_fx=fx)
            return super().training_step(batch, index)

    trainer, _ = fit(Logging, False, 1)
    seen = {name: float(trainer.callback_metrics[name]) for name in ("mean", "sum", "max", "min")}
    whole = SIZE * (SIZE + 1) / 2
    assert seen == {"mean": whole / SIZE, "sum": 6 * whole, "max": float(SIZE), "min": 1.0}
    reduce = trainer.strategy.reduce
    assert float(reduce(torch.tensor(RANK + 1))) == whole / SIZE
    assert int(reduce(torch.tensor(RANK + 1), reduce_op=torch.distributed.ReduceOp.MAX)) == SIZE
    with pytest.raises(ConfigurationError, match="'median'; expected one of mean"):
        reduce(torch.ones(1), reduce_op="median")


def test_optimizers_stepped_by_hand():
    for wrap in OPTIMIZERS:
        agree(fit(Adversaries, False, 3, wrap=wrap)[1], fit(Adversaries, True, 3)[1])


def test_a_trainer_goes_on_from_its_checkpoint():
    """The weights equal those of an undisturbed run."""
    for kind, wrap in itertools.product((Regression, Adversaries), OPTIMIZERS):
        file = Path(hvd.broadcast_object(tempfile.mkdtemp(), 0)) / "half.ckpt"
        _, whole = fit(kind, False, 4, wrap=wrap)
        trainer, _ = fit(kind, False, 2, wrap=wrap)
        trainer.save_checkpoint(file)
        _, resumed = fit(kind, False, 4, ckpt=file, wrap=wrap)
        agree(resumed, whole, 0)


def test_every_rank_starts_from_rank_0_and_only_rank_0_logs():
    strategy = RingtrainStrategy()
    assert (strategy.world_size, strategy.global_rank, strategy.is_global_zero) == (SIZE, RANK, RANK == 0)
    assert strategy.broadcast({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert strategy.all_gather(torch.tensor([float(RANK)])).tolist() == [[float(rank)] for rank in range(SIZE)]
    assert strategy.reduce(torch.tensor(float(RANK)), reduce_op="sum") == sum(range(SIZE))
    assert strategy.reduce("text") == "text"
