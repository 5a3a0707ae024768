"""What this process knows of versions: its own writing is no news, also when it is heard of during a look."""

import pytest

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import Connection
from ringtrain_operator.cluster.queue import Key
from ringtrain_operator.cluster.versions import Versions

A, B = Key("default", "a"), Key("default", "b")


@pytest.fixture
def versions() -> Versions:
    """Nothing known yet; nothing is asked of the API server."""
    return Versions(ApiClient(Connection("http://127.0.0.1:1")))


def test_own_writing_is_no_news(versions: Versions) -> None:
    """The event of the status that was written last asks for no look; any other does."""
    versions.settled(A, "7")
    assert not versions.is_news(A, "7", during_look=False)
    assert versions.is_news(A, "8", during_look=False)
    assert versions.is_news(B, "7", during_look=False)


def test_an_event_may_come_before_the_answer_to_its_write(versions: Versions) -> None:
    """During a look nothing is news; at its end its own writing, known by then, still is none."""
    assert not versions.is_news(A, "7", during_look=True)
    versions.settled(A, "7")
    assert not versions.look_ended(A)


def test_another_s_change_during_a_look_asks_for_one_more(versions: Versions) -> None:
    """The last version that was heard of counts, once."""
    assert not versions.is_news(A, "7", during_look=True)
    assert not versions.is_news(A, "8", during_look=True)
    versions.settled(A, "7")
    assert versions.look_ended(A)
    assert not versions.look_ended(A)


def test_a_job_that_is_gone_leaves_nothing(versions: Versions) -> None:
    """A job of its name whose version is the same by chance is news."""
    versions.settled(A, "7")
    versions.forget(A)
    assert versions.is_news(A, "7", during_look=False)
