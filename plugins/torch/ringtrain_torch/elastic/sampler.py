"""Sampler that keeps its position in the data set when the world changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch

import ringtrain as rt
from ringtrain.adapter import note_epoch
from ringtrain.data import Shard
from ringtrain.errors import counted


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Sampler that divides the rest of an epoch into equal parts for the ranks of the current world.

        sampler = ElasticSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        for index, batch in enumerate(loader):
            ...
            sampler.record_batch(index, 32)
            state.commit()
        sampler.set_epoch(epoch + 1)         # at the end of an epoch, not at its beginning

    `dataset`: a data set whose length does not change. `seed`: the same on all ranks. Ranks get equally many samples:
    if the rest is not divisible, some samples at the end of an epoch are repeated, as with `DistributedSampler`;
    `ringtrain.elastic.shard` returns each sample once. Use it as a part of a `TorchState`, or create a new iterator
    after a change.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch` with all of its samples unused."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch of `batch_size` samples as used on every rank. `batch_idx` is ignored."""
        self.processed_num = min(len(self.dataset), self.processed_num + batch_size * self.num_replicas)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the position in the epoch that `state_dict` contains, which a world of another size may have
        saved."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the rest of the epoch among the ranks of the current world, or of the last world if there is no
        current one."""
        if rt.is_initialized():
            self.num_replicas, self.rank = rt.size(), rt.rank()
        order = Shard(len(self.dataset), 1, 0, 1, self.seed, self.shuffle, "padded").order(self.epoch)
        self.remaining_indices = order[self.processed_num :].tolist()
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        cut = f"ElasticSampler({counted(len(self.dataset), 'sample')}, shuffle={self.shuffle}, seed={self.seed})"
        note_epoch(self.rank, self.num_replicas, cut, f"epoch {self.epoch} from sample {self.processed_num} on")
        indices = [*self.remaining_indices]
        while indices and len(indices) < self.total_size:  # the rest may be smaller than the world
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
