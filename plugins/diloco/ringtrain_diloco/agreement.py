"""Checks before a synchronization: equal numbers of inner steps on all ranks, equal weights on the ranks of a site."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from ringtrain.adapter import Array, CollectiveGroup
from ringtrain.errors import MismatchError


@dataclass(frozen=True)
class PseudoGradientHeader:
    """Step count, sample count and weights digest that a rank sends before its pseudo-gradient.

    `steps`: number of inner steps. `samples`: number of samples in the steps since the fragment was last synchronized.
    `digest`: CRC-32 of the weights; 0 if there are no sites, because each rank then has different weights.
    """

    steps: int
    samples: float = 0
    digest: int = 0


def agree_on_step(
    group: CollectiveGroup, what: str, own: PseudoGradientHeader, sites: Sequence[Sequence[int]], period: int
) -> float:
    """Check that all ranks do `what` after the same inner step, and that the ranks of a site have equal weights.

    `what`: name of the operation in errors. `own`: this rank's header. `sites`: the ranks of each site. `period`: 1; if
    sites take different numbers of inner steps, the number of this site's steps that count as one. Returns the weight
    of this rank's site in the mean, relative to an equal weight of all sites. Raises MismatchError on all ranks.
    Collective.
    """
    everyone = group.allgather_object([what, own.steps // period, *astuple(own)], "DiLoCo")
    for rank, other in enumerate(everyone):
        if other[:2] != everyone[0][:2]:
            raise MismatchError(
                f"DiLoCo: rank {rank} begins {other[0]} after inner step {other[2]}, and rank 0 begins "
                f"{everyone[0][0]} after inner step {everyone[0][2]}; all ranks must take the same number of inner "
                "steps: give all ranks the same number of batches"
            )
    for rank, first in ((rank, ranks[0]) for ranks in sites for rank in ranks):
        if everyone[rank][4] != everyone[first][4]:
            raise MismatchError(
                f"DiLoCo: rank {rank} and rank {first} are in one site but have different weights at {what}; average "
                "the gradients of a site with average() before each inner step"
            )
    samples = [float(count) for *_, count, _ in everyone]
    own_site = next(ranks for ranks in sites if group.rank in ranks)
    total = sum(samples)
    return len(sites) * sum(samples[rank] for rank in own_site) / total if total else 1.0


def digest_of(arrays: Iterable[Array]) -> int:
    """Return the CRC-32 of all bytes of `arrays`."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found
