"""Pairing of pods in a reduction, for any number of pods."""

import pytest

from ringtrain._core.communicators.pairing import PodPairing, scattered_section, shared_section

PODS = pytest.mark.parametrize("pods", [2, 3, 4, 5, 7, 8, 9, 12, 16, 100])


@PODS
@pytest.mark.parametrize("section", [0, 1])
def test_partners_are_each_others(pods: int, section: int) -> None:
    """In each round every acting pod has one partner, whose partner it is."""
    pairing = PodPairing(pods)
    for k in range(pairing.rounds):
        for node in range(pairing.nodes):
            partner = pairing.node_of(pairing.partner(node, section, k))
            assert pairing.partner(partner, section, k) == pairing.acting(node, section)


@PODS
def test_pods_of_a_node_act_by_turns(pods: int) -> None:
    """Every pod is in one node, in the pods' order, and acts in one section of two at least."""
    pairing = PodPairing(pods)
    assert [pod for node in range(pairing.nodes) for pod in pairing.pods_of(node)] == list(range(pods))
    assert {pairing.acting(node, i) for node in range(pairing.nodes) for i in (0, 1)} == set(range(pods))


@PODS
def test_halves_that_are_kept_are_neighbours(pods: int) -> None:
    """Round after round the order's first half is of nodes whose bit is 0, until one node is left."""
    pairing = PodPairing(pods)
    for node in range(pairing.nodes):
        left = list(pairing.order)
        for k in range(pairing.rounds):
            half = len(left) // 2
            assert all(n >> k & 1 == 0 for n in left[:half])
            left = left[half:] if node >> k & 1 else left[:half]
        assert left == [node]


def test_sections_cut_a_ranks_part_for_all_nodes() -> None:
    """A shared one evenly, a dealt one where the pods' chunks are, two of them in a node of two."""
    pairing = PodPairing(3)
    assert shared_section(((0, 5), (5, 10)), 1, pairing).cuts == (0, 3, 5)
    chunks = [((0, 1), (1, 3)), ((3, 3), (3, 7)), ((7, 9), (9, 10))]
    dealt = scattered_section(chunks, 2, 1, pairing)
    assert dealt.blocks == tuple(chunks)
    assert dealt.cuts == (0, 6, 7)
    assert dealt.own == (9, 10)
