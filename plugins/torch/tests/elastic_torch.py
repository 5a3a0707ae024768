"""Programs of the ranks in test_elastic.py."""

import hashlib
import multiprocessing
from typing import Any

import torch
from support.elastic_agent import pause
from support.elastic_steps import call_first

import ringtrain as rt
import ringtrain.torch as hvd

SAMPLES = 96


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, 12, generator=generator), torch.randn(SAMPLES, 3, generator=generator)


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 8), hvd.SyncBatchNorm(8), torch.nn.Linear(8, 3))


def trains(kind: str, epochs: int, told: tuple[int, ...]) -> dict[str, Any]:
    """Train for `epochs`, report the steps in `told`, and wait in them; return the final values."""
    torch.set_num_threads(1)
    hvd.init()
    x, y = data()
    model = model_of(hvd.rank())
    shard = rt.elastic.shard(SAMPLES, rt.elastic.FixedGlobal(12, micro_batch=5), seed=1)
    if kind == "host":
        optimizer: Any = hvd.HostOptimizer(model, rt.optim.AdamW(lr=0.01), elastic=True)
        scheduler = None
    else:
        plain = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 4, 0.5)
    state = hvd.elastic.TorchState(
        model, optimizer, scheduler=scheduler, shard=shard, step=0, ledger=[], losses=[torch.zeros(1)]
    )

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.optimizer.set_backward_passes_per_step(state.shard.passes)
        # HostOptimizer takes the mean over passes, torch adds them up
        passes = 1 if kind == "host" else state.shard.passes
        for epoch in state.shard.epochs(epochs):
            for batch in state.shard:
                state.step += 1
                pause(state.step, told)
                state.optimizer.zero_grad()
                for part in batch.micro_batches:
                    rows = torch.from_numpy(part.indices)
                    loss = torch.nn.functional.mse_loss(state.model(x[rows]), y[rows])
                    (loss * part.weight / passes).backward()
                    if kind == "host":
                        state.optimizer.step()
                if kind != "host":
                    state.optimizer.step()
                if state.scheduler is not None:
                    state.scheduler.step()
                for used in hvd.allgather_object(batch.indices[batch.mask].tolist()):
                    state.ledger += [(epoch, index) for index in used]
                state.commit()

    train(state)
    if kind == "host":
        optimizer.synchronize()
    return {
        "digest": digest_of(model),
        "ledger": sorted(state.ledger),
        "step": state.step,
        "rate": None if scheduler is None else scheduler.get_last_lr(),
    }


def digest_of(model: torch.nn.Module) -> str:
    """Return a digest of parameters and buffers."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def goes_on(kind: str, steps: int, told: tuple[int, ...]) -> dict[str, Any]:
    """Train with batch normalisation, a schedule and a scaler; return what is left of all of them."""
    torch.set_num_threads(1)
    hvd.init()
    x, y = data()
    model = model_of(hvd.rank())
    shard = rt.elastic.shard(SAMPLES, rt.elastic.FixedGlobal(12), seed=1)
    more: dict[str, Any] = {}
    if kind == "host":  # as docs/elastic.md has it: the model is in the state with its optimizer
        optimizer: Any = hvd.HostOptimizer(model, rt.optim.SGD(lr=0.05, momentum=0.9), elastic=True)
        state: Any = rt.elastic.State(optimizer=optimizer, shard=shard, step=0)
    else:
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        more["scheduler"] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
        more["scaler"] = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, shard=shard, step=0, **more)

    def step(loss: torch.Tensor) -> None:
        if kind == "host":
            loss.backward()
            optimizer.step()
            return
        more["scaler"].scale(loss).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            more["scaler"].step(optimizer)
        more["scaler"].update()
        more["scheduler"].step()

    @hvd.elastic.run
    def train(state: Any) -> None:
        for _ in state.shard.epochs(100):
            for batch in state.shard:
                if state.step == steps:
                    return
                state.step += 1
                pause(state.step, told)
                optimizer.zero_grad()
                rows = torch.from_numpy(batch.indices)
                step(torch.nn.functional.mse_loss(model(x[rows]), y[rows]) * batch.weight)
                state.commit()

    train(state)
    if kind == "host":
        optimizer.synchronize()
    left = {name: value.state_dict() for name, value in more.items()}
    return {
        "model": {k: v.tolist() for k, v in model.state_dict().items()},
        "left": repr(left),
        "step": state.step,
    }


def samples(epochs: int, batch_size: int, told: tuple[int, ...], workers: int) -> list[list[int]]:
    """Iterate an `ElasticSampler` by a loader with so many `workers`, which read ahead; the indices that all ranks
    have used, by epoch."""
    hvd.init()
    # multiprocessing refuses children of a rank, which is its child and daemonic; ranks of a job are not
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=2)
    state = hvd.elastic.TorchState(sampler=sampler, seen=[[] for _ in range(epochs)], batches=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.sampler.epoch < epochs:
            loader = torch.utils.data.DataLoader(
                range(SAMPLES),
                batch_size,
                sampler=state.sampler,
                num_workers=workers,
                prefetch_factor=4 if workers else None,
            )
            for index, batch in enumerate(loader):
                state.batches += 1
                pause(state.batches, told)
                for used in hvd.allgather_object(batch.tolist()):
                    state.seen[state.sampler.epoch] += used
                state.sampler.record_batch(index, batch_size)
                state.commit()
            state.sampler.set_epoch(state.sampler.epoch + 1)
            state.commit()

    train(state)
    return [sorted(epoch) for epoch in state.seen]


def calls_first(collective: str) -> list[int]:
    hvd.init()
    return call_first(hvd, torch.ones, collective, lambda: hvd.elastic.TorchState(step=0, sizes=[]))
