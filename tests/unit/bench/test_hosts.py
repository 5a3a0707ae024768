"""Hosts of the benchmark's ranks."""

from bench.hosts import Loopback


def _pods(contender: str) -> list[tuple[str, str]]:
    commands = Loopback(4).commands(contender, ["worker"])
    return [(env["RINGTRAIN_CROSS_RANK"], env["RINGTRAIN_LOCAL_RANK"]) for _, env in commands]


def test_pods_on_one_machine_have_two_ranks_each() -> None:
    """Of one contender; all others have one pod."""
    assert _pods("ringtrain-pods") == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert _pods("ringtrain-shm") == [("0", "0"), ("0", "1"), ("0", "2"), ("0", "3")]
