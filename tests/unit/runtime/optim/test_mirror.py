"""On which rank each replica of a shard is."""

from collections import Counter
from itertools import product

import pytest

from ringtrain.optim.mirror import assign_replicas

PODS = [pods for size in range(1, 7) for pods in product("abc", repeat=size)]


@pytest.mark.parametrize("copies", [1, 2])
def test_replicas_are_in_other_pods(copies: int) -> None:
    """For all placements of up to 6 ranks in 3 pods: unless one pod has more than 1/2 (1 copy) or 1/3 of the ranks."""
    for pods in PODS:
        replicas = assign_replicas(pods, copies)
        assert len(replicas) == min(copies, len(pods) - 1)
        for ranks in replicas:
            assert sorted(ranks) == list(range(len(pods))), "each rank stores one shard of each set of replicas"
        largest = max(Counter(pods).values())
        for owner, pod in enumerate(pods):
            stored = [ranks[owner] for ranks in replicas]
            assert len({owner, *stored}) == 1 + len(stored)
            if largest * (copies + 1) <= len(pods):
                assert len({pod, *(pods[rank] for rank in stored)}) == 1 + len(stored), (pods, owner, stored)
