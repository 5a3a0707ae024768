"""Which pods add up with which, and how a tensor is cut for it: arithmetic without communication."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ringtrain._core.communicators.shm.native import Chunks
from ringtrain._core.reduction.cuts import Bounds, even_bounds, length_offsets


@dataclass(frozen=True)
class PodPairing:
    """Pods are nodes, as many as the largest power of two up to `pods`. Where that leaves some over, the first
    nodes are two pods each. In round k nodes add up whose numbers differ in bit k.

    Of the pods of one node one acts, by turns: section after section of a tensor.
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
        """How many nodes are two pods."""
        return self.pods - self.nodes

    def node_of(self, pod: int) -> int:
        return pod // 2 if pod < 2 * self.pairs else pod - self.pairs

    def pods_of(self, node: int) -> tuple[int, ...]:
        return (2 * node, 2 * node + 1) if node < self.pairs else (node + self.pairs,)

    def acting(self, node: int, section: int) -> int:
        pods = self.pods_of(node)
        return pods[section % len(pods)]

    def idle(self, node: int, section: int) -> int | None:
        """The pod of `node` that does not act; None where the node is one pod."""
        return next((pod for pod in self.pods_of(node) if pod != self.acting(node, section)), None)

    def partner(self, node: int, section: int, round_: int) -> int:
        """The pod that acts for the node with which `node` adds up in a round."""
        return self.acting(node ^ (1 << round_), section)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Nodes in the order of what they keep: in round k those keep the first half whose bit k is 0."""
        return tuple(sorted(range(self.nodes), key=lambda node: f"{node:0{self.rounds + 1}b}"[::-1]))


@dataclass(frozen=True)
class PodTreeSection:
    """What of a tensor goes through the rounds at once, as one rank sees it.

    `blocks`: what the ranks of a pod add up, one meeting each; the rank's chunks of all of them, one after the
    other, are its part. `cuts`: of that part, where the share of each node begins, in the pairing's order. `own`:
    where in the tensor that lies of which the rank wants the result.
    """

    blocks: tuple[Chunks, ...]
    cuts: Bounds
    own: tuple[int, int]


def shared_section(chunks: Chunks, local: int, pairing: PodPairing) -> PodTreeSection:
    """`chunks`, one for each rank of a pod, all of whose results all ranks want."""
    start, end = own = chunks[local]
    return PodTreeSection((chunks,), even_bounds(end - start, pairing.nodes), own)


def dealt_section(by_pod: Sequence[Chunks], pod: int, local: int, pairing: PodPairing) -> PodTreeSection:
    """What each rank of each pod wants its own chunk of."""
    by_node = [[by_pod[pod] for pod in pairing.pods_of(node)] for node in pairing.order]
    lengths = [sum(chunks[local][1] - chunks[local][0] for chunks in of_node) for of_node in by_node]
    return PodTreeSection(tuple(chain.from_iterable(by_node)), length_offsets(lengths), by_pod[pod][local])
