"""Arithmetic of the tree of pods: which pods exchange sums in which round, and which part of a tensor each one gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ringtrain._core.communicators.shm.native import Chunks
from ringtrain._core.reduction.cuts import Bounds, even_bounds, length_offsets


@dataclass(frozen=True)
class PodPairing:
    """Grouping of `pods` into nodes for pairwise sums. The number of nodes is the largest power of two up to `pods`. If
    pods remain, the first nodes consist of two pods each.

    In round k nodes whose numbers differ in bit k add their sums. A tensor is exchanged in sections. In a node of two
    pods, the pods alternate: each exchanges every second section."""

    pods: int

    @cached_property
    def rounds(self) -> int:
        return self.pods.bit_length() - 1

    @property
    def nodes(self) -> int:
        return 1 << self.rounds

    @property
    def pairs(self) -> int:
        """Return the number of nodes with two pods."""
        return self.pods - self.nodes

    def node_of(self, pod: int) -> int:
        return pod // 2 if pod < 2 * self.pairs else pod - self.pairs

    def pods_of(self, node: int) -> tuple[int, ...]:
        return (2 * node, 2 * node + 1) if node < self.pairs else (node + self.pairs,)

    def acting(self, node: int, section: int) -> int:
        pods = self.pods_of(node)
        return pods[section % len(pods)]

    def idle(self, node: int, section: int) -> int | None:
        """Return the pod of `node` that does not exchange `section`; None if the node has only one pod."""
        return next((pod for pod in self.pods_of(node) if pod != self.acting(node, section)), None)

    def partner(self, node: int, section: int, round_: int) -> int:
        """Return the pod of another node with which the acting pod of `node` exchanges sums of `section` in round
        `round_`."""
        return self.acting(node ^ (1 << round_), section)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the nodes sorted by the position of their parts in a tensor that is halved in each round."""
        return tuple(sorted(range(self.nodes), key=lambda node: f"{node:0{self.rounds + 1}b}"[::-1]))


@dataclass(frozen=True)
class PodTreeSection:
    """Section of a tensor that passes through all rounds of the tree at once, as one rank sees it.

    `blocks`: the ranks of a pod add the section block by block, with a barrier after each. A block has one chunk for
    each rank; this rank adds its chunk of every block. `cuts`: offsets of each pod's share in the concatenated chunks
    of this rank, in the pairing's order. `own`: begin and end, in the tensor, of the result that this rank needs.
    """

    blocks: tuple[Chunks, ...]
    cuts: Bounds
    own: tuple[int, int]


def shared_section(chunks: Chunks, local: int, pairing: PodPairing) -> PodTreeSection:
    """Return the section for `chunks`, one for each rank of a pod, whose results all pods need. `local`: place of this
    rank in its pod."""
    start, end = own = chunks[local]
    return PodTreeSection((chunks,), even_bounds(end - start, pairing.nodes), own)


def scattered_section(by_pod: Sequence[Chunks], pod: int, local: int, pairing: PodPairing) -> PodTreeSection:
    """Return the section for the chunks of each pod in `by_pod`, if each rank needs only its own chunk's result.

    `pod`, `local`: number of this rank's pod, and place of this rank in it.
    """
    by_node = [[by_pod[pod] for pod in pairing.pods_of(node)] for node in pairing.order]
    lengths = [sum(chunks[local][1] - chunks[local][0] for chunks in of_node) for of_node in by_node]
    return PodTreeSection(tuple(chain.from_iterable(by_node)), length_offsets(lengths), by_pod[pod][local])
