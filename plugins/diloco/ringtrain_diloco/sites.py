"""Sites: groups of ranks that train synchronously. An outer step sends each byte only once out of a site."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import ringtrain as rt
from ringtrain.adapter import Array, CollectiveGroup, joins_survivors, open_group, process_set_of
from ringtrain.adapter.devices import ProcessGroup
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer
from ringtrain.optim.rules import Rule
from ringtrain_diloco.fragments import fragment_bounds

_ONE_RANK_PER_SITE = (
    "expected one rank per site with elastic=True, because a lost rank interrupts the step of its whole site; "
    "start one rank per site, pass sites=() so that each rank trains alone, or remove elastic"
)


def check_elastic_sites() -> None:
    """Raise ConfigurationError on all ranks if a named site of the current world has several ranks."""
    for name, ranks in rt.sites().items():
        if name and len(ranks) > 1:
            raise ConfigurationError(f"DiLoCo: site {name!r} has ranks {ranks}; {_ONE_RANK_PER_SITE}")


@dataclass(frozen=True)
class DiLoCoSites:
    """Ranks of each site in ascending order, and the rank of this process."""

    ranks: tuple[tuple[int, ...], ...]
    rank: int

    @classmethod
    def chosen(
        cls, given: Sequence[Sequence[int]] | None, elastic: bool, group: CollectiveGroup | None
    ) -> "DiLoCoSites":
        """Return the sites `given`, otherwise the configured sites of the world, otherwise one site for each rank.

        Raises ConfigurationError unless each rank is in one site, or if `elastic` and a site has several ranks.
        """
        if group is not None:
            return cls(tuple((rank,) for rank in range(group.size)), group.rank)
        size, rank = rt.size(), rt.rank()
        if elastic and given is None and not joins_survivors():  # those check in `prepare`, on all ranks
            check_elastic_sites()
        named = rt.sites() if given is None and not elastic else {}
        found = [tuple(sorted(ranks)) for ranks in (named.values() if len(named) > 1 else given or ())]
        sites = cls(tuple(found) or tuple((rank,) for rank in range(size)), rank)
        if sorted(rank for ranks in found for rank in ranks) != list(range(size)) and found:
            raise ConfigurationError(
                f"DiLoCo: sites is {given}; expected each rank from 0 to {size - 1} in exactly one site"
            )
        if elastic and not sites.alone:
            raise ConfigurationError(f"DiLoCo: sites is {sites.ranks}; {_ONE_RANK_PER_SITE}")
        return sites

    @property
    def alone(self) -> bool:
        """Whether each site has one rank."""
        return all(len(ranks) == 1 for ranks in self.ranks)

    @property
    def own(self) -> int:
        """Index of this rank's site."""
        return next(number for number, ranks in enumerate(self.ranks) if self.rank in ranks)


class DiLoCoSiteGroups:
    """Process groups of this rank: one with its own site, one with the ranks that have this rank's index in other
    sites. Collective over the world.

    `site`: process set of the site. `near`: group of the site. `far`: group of the ranks with this rank's index in
    their sites; None if a site has no such rank. `carriers`: number of ranks of each site that have a `far` group.
    """

    def __init__(self, sites: DiLoCoSites) -> None:
        self.sites = sites
        self.site = [process_set_of(ranks) for ranks in sites.ranks][sites.own]
        self.near = open_group(self.site)
        self.carriers = min(map(len, sites.ranks))
        peers = [process_set_of(sorted(column)) for column in zip(*sites.ranks, strict=False)]
        self.far: ProcessGroup | None = None
        if self.near.rank < self.carriers:
            self.far = open_group(peers[self.near.rank])

    def average(self, gradients: Mapping[str, Array]) -> None:
        """Average `gradients` over the ranks of this site in place. Collective in the site."""
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients.values()):
            arrays = [gradient for gradient in gradients.values() if gradient.dtype == dtype]
            flat = np.concatenate([array.reshape(-1) for array in arrays])
            rt.allreduce_(flat, op=rt.Sum, process_set=self.site)
            flat /= dtype.type(self.near.size)
            ends = accumulate(array.size for array in arrays)
            for array, end in zip(arrays, ends, strict=True):
                array[...] = flat[end - array.size : end].reshape(array.shape)

    def close(self) -> None:
        """Free memory and descriptors."""
        self.near.close()
        if self.far is not None:
            self.far.close()


class SiteOptimizer:
    """Outer optimizer for sites of several ranks. All ranks of a site pass the same pseudo-gradient.

    Each rank carries a part of the parameters: it steps a `HostOptimizer` of that part with the ranks of the same index
    in other sites. Then the site gathers the new weights of all parts. There are as many parts as the smallest site has
    ranks.

    `initial`: weights by name; those of rank 0 are used. `options`: options of `HostOptimizer`. `carries`: names of the
    parameters in this rank's part.
    """

    def __init__(self, initial: Mapping[str, Array], rule: Rule, groups: DiLoCoSiteGroups, **options: Any) -> None:
        self._near = groups.near
        names = list(initial)
        sizes = [array.nbytes for array in initial.values()]
        cuts = fragment_bounds(sizes, min(groups.carriers, len(names)))
        parts = [names[first:end] for first, end in pairwise(cuts)]
        parts += [[]] * (self._near.size - len(parts))
        self.carries = tuple(parts[self._near.rank])
        self.weights: dict[str, Array] = {}
        self._buffers: list[tuple[Array, list[int]]] = []
        for dtype in dict.fromkeys(array.dtype for array in initial.values()):
            of_dtype = [[name for name in part if initial[name].dtype == dtype] for part in parts]
            bounds = [0, *accumulate(sum(initial[name].size for name in part) for part in of_dtype)]
            buffer = self._near.allocate(bounds[-1], dtype)
            ends = accumulate(initial[name].size for name in names if initial[name].dtype == dtype)
            for name, end in zip((name for part in of_dtype for name in part), ends, strict=True):
                view = buffer[end - initial[name].size : end].reshape(initial[name].shape)
                view[...] = initial[name]
                self.weights[name] = view
            self._near.broadcast(buffer)
            self._buffers.append((buffer, bounds))
        self._host: HostOptimizer | None = None
        if self.carries:
            part = {name: self.weights[name] for name in self.carries}
            self._host = HostOptimizer(part, rule, group=groups.far, **options)
        self._norm: float | None = None
        self._gather()

    def gradient(self, name: str) -> Array:
        """Return the array for the gradient of `name`, a parameter in this rank's part."""
        assert self._host is not None
        return self._host.gradient(name)

    def submit(self, name: str, gradient: Array) -> None:
        """Submit the gradient of `name`, a parameter in this rank's part."""
        assert self._host is not None
        self._host.submit(name, gradient)

    def step(self) -> None:
        """Update this rank's part of the outer weights, and gather the parts of the site's other ranks. Collective."""
        square = 0.0
        if self._host is not None:
            self._host.step()
            square = (self._host.gradient_norm or 0.0) ** 2
        self._gather()
        self._norm = math.sqrt(sum(self._near.allgather_object(square, "DiLoCo's norm")))

    @property
    def gradient_norm(self) -> float | None:
        """Global L2 norm of the mean gradient of the last step, over all parameters; None before the first step."""
        return self._norm

    @property
    def state_bytes(self) -> int:
        """Bytes of the outer optimizer's state on this rank."""
        return 0 if self._host is None else self._host.state_bytes

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of all parameters, and the optimizer state of this rank's part. Collective."""
        part = None if self._host is None else self._host.state_dict()
        return {"weights": {name: array.copy() for name, array in self.weights.items()}, "part": part}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict()` returned on this rank. Not collective."""
        for name, values in state["weights"].items():
            self.weights[name][...] = values
        if self._host is not None:
            self._host.load_state_dict(state["part"])

    def close(self) -> None:
        """Free memory and descriptors."""
        if self._host is not None:
            self._host.close()

    def _gather(self) -> None:
        for name in self.carries:
            assert self._host is not None
            self.weights[name][...] = self._host.weights[name]
        for buffer, bounds in self._buffers:
            self._near.all_gather(buffer, bounds).wait()
