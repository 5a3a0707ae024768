"""Pairing of pods for reductions, and cuts of a tensor for it: arithmetic without communication."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ringtrain._core.communicators.shm.native import Chunks
from ringtrain._core.reduction.cuts import Bounds, even_bounds, length_offsets


@dataclass(frozen=True)
class PodPairing:
    """Grouping of pods into nodes: as many as the largest power of two up to `pods`.

    If pods remain, the first nodes consist of two pods each. In round k nodes whose numbers differ in bit k add their
    sums. Of a node's two pods one is active, in turn: one section of a tensor after another.
    """

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
        """Return the pod of `node` that is not active; None if the node is one pod."""
        return next((pod for pod in self.pods_of(node) if pod != self.acting(node, section)), None)

    def partner(self, node: int, section: int, round_: int) -> int:
        """Return the active pod of the node with which `node` adds in a round."""
        return self.acting(node ^ (1 << round_), section)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the nodes in the order of their shares: in round k nodes with bit k 0 keep the first half."""
        return tuple(sorted(range(self.nodes), key=lambda node: f"{node:0{self.rounds + 1}b}"[::-1]))


@dataclass(frozen=True)
class PodTreeSection:
    """Part of a tensor that passes the rounds at once, for one rank.

    `blocks`: chunks that the ranks of a pod add, one barrier each; the concatenation of the rank's chunks is its part.
    `cuts`: offsets of each node's share in that part, in the pairing's order. `own`: place in the tensor of the result
    that the rank needs.
    """

    blocks: tuple[Chunks, ...]
    cuts: Bounds
    own: tuple[int, int]


def shared_section(chunks: Chunks, local: int, pairing: PodPairing) -> PodTreeSection:
    """Return the section for `chunks`, one for each rank of a pod, whose results all ranks need."""
    start, end = own = chunks[local]
    return PodTreeSection((chunks,), even_bounds(end - start, pairing.nodes), own)


def scattered_section(by_pod: Sequence[Chunks], pod: int, local: int, pairing: PodPairing) -> PodTreeSection:
    """Return the section of which each rank of each pod needs only its own chunk."""
    by_node = [[by_pod[pod] for pod in pairing.pods_of(node)] for node in pairing.order]
    lengths = [sum(chunks[local][1] - chunks[local][0] for chunks in of_node) for of_node in by_node]
    return PodTreeSection(tuple(chain.from_iterable(by_node)), length_offsets(lengths), by_pod[pod][local])
