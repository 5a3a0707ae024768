"""Place of a rank among the ranks of all hosts, from the list of ranks by host."""

from ringtrain.shared.place import RankPlace


def test_ranks_of_two_hosts() -> None:
    """Each is counted among those of its host, and among those in its position on all hosts."""
    hosts = [[0, 1, 2], [3, 4]]
    assert [RankPlace.among(hosts, rank) for rank in range(5)] == [
        RankPlace(0, 5, 0, 3, 0, 2),
        RankPlace(1, 5, 1, 3, 0, 2),
        RankPlace(2, 5, 2, 3, 0, 1),
        RankPlace(3, 5, 0, 2, 1, 2),
        RankPlace(4, 5, 1, 2, 1, 2),
    ]
