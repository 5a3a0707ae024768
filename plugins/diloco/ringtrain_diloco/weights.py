"""Outer weights and local weights of a rank, cut into fragments."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from ringtrain.adapter import Array, CollectiveGroup
from ringtrain.optim import HostOptimizer
from ringtrain.optim.rules import Rule
from ringtrain_diloco.arguments import DiLoCoLocalWeights
from ringtrain_diloco.fragments import DiLoCoFragment, fragment_bounds
from ringtrain_diloco.sites import DiLoCoSiteGroups, SiteOptimizer

# Bytes on the wire for each float32, with the scales of int8. Other dtypes are not compressed.
_WIRE_BYTES = {"bf16": 2.0, "fp16": 2.0, "int8": 1 + 4 / 512}


class OuterWeights:
    """Outer weights of all fragments, and the local weights that are set from them.

    `local`: weights of this rank. `fragments`: fragments, each with an outer optimizer. `mix`: fraction of the local
    weights that `mix_into_local` retains.
    """

    def __init__(self, local: DiLoCoLocalWeights, fragments: Sequence[DiLoCoFragment], mix: float) -> None:
        self.local, self.fragments = local, fragments
        self._mix = mix
        self._names = [name for fragment in fragments for name in fragment.names]

    @property
    def by_name(self) -> Mapping[str, Array]:
        """Views of the outer weights."""
        return MappingProxyType({name: one.outer.weights[name] for one in self.fragments for name in one.names})

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of all outer optimizers on this rank."""
        return sum(fragment.outer.state_bytes for fragment in self.fragments)

    def wire_bytes(self, compression: str | None) -> float:
        """Return the compressed size, in bytes, of this rank's part of the pseudo-gradients of all fragments."""
        each = _WIRE_BYTES.get(compression or "", 4.0)
        carried = [one.outer.weights[name] for one in self.fragments for name in one.carries]
        return sum(array.size * each if array.dtype == np.float32 else array.nbytes for array in carried)

    def copy_local(self) -> dict[str, Array]:
        """Return copies of the local weights by name."""
        values = self.local.read(self._names)
        return {name: np.array(array) for name, array in zip(self._names, values, strict=True)}

    def write_local(self, values: Mapping[str, Array]) -> None:
        """Set the local weights in `values`."""
        for name, array in values.items():
            self.local.write(name, array)

    def use(self, fragments: Sequence[DiLoCoFragment]) -> None:
        """Set the local weights of `fragments` to the outer weights."""
        for fragment in fragments:
            self.write_local({name: fragment.outer.weights[name] for name in fragment.names})

    def mix_into_local(self, fragment: DiLoCoFragment) -> None:
        """Set the local weights of `fragment` to outer + mix * (local - outer)."""
        if self._mix == 0:
            self.use([fragment])
        elif self._mix < 1:
            for name, local in zip(fragment.names, self.local.read(fragment.names), strict=True):
                outer = fragment.outer.weights[name]
                self.local.write(name, np.asarray(outer + outer.dtype.type(self._mix) * (local - outer)))

    def write_pseudo_gradient(self, fragment: DiLoCoFragment) -> Sequence[Array]:
        """Write outer minus local weights into this rank's part of the outer gradients; return the local weights."""
        values = self.local.read(fragment.names)
        for name, local in zip(fragment.names, values, strict=True):
            if name in fragment.carries:
                np.subtract(fragment.outer.weights[name], local, out=fragment.outer.gradient(name))
        return values

    def close(self) -> None:
        """Free memory and file descriptors of the outer optimizers."""
        for fragment in self.fragments:
            fragment.outer.close()


def cut_into_fragments(
    initial: Mapping[str, Array],
    count: int,
    outer: Rule,
    exchanges_in: CollectiveGroup | DiLoCoSiteGroups,
    options: Mapping[str, Any],
) -> list[DiLoCoFragment]:
    """Cut the parameters `initial` into `count` fragments with an outer optimizer each. Collective.

    `exchanges_in`: the group of all ranks, or the groups of sites. `options`: options of `HostOptimizer`.
    """
    # Infinity clips nothing; a HostOptimizer computes the norm only if it may clip.
    options = {**options, "clip_norm": math.inf}
    fragments = []
    for index, (first, end) in enumerate(pairwise(fragment_bounds([a.nbytes for a in initial.values()], count))):
        values = dict(list(initial.items())[first:end])
        names = tuple(values)
        if isinstance(exchanges_in, DiLoCoSiteGroups):
            by_site = SiteOptimizer(values, outer, exchanges_in, **options)
            fragments.append(DiLoCoFragment(index, names, by_site.carries, by_site))
        else:
            host = HostOptimizer(values, outer, group=exchanges_in, **options)
            fragments.append(DiLoCoFragment(index, names, names, host))
    return fragments
