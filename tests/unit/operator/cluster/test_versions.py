"""Versions that this process knows: its own write is no news, even if its event arrives during a reconcile."""

import pytest

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.queue import JobKey
from ringtrain_operator.cluster.versions import ResourceVersions

A, B = JobKey("default", "a"), JobKey("default", "b")


@pytest.fixture
def versions() -> ResourceVersions:
    """Nothing known yet; nothing is asked of the API server."""
    return ResourceVersions(ApiClient(ApiConnection("http://127.0.0.1:1")))


def test_own_writing_is_no_news(versions: ResourceVersions) -> None:
    """The event of the status that was written last asks for no look; any other does."""
    versions.record_settled(A, "7")
    assert not versions.is_news(A, "7", during_reconcile=False)
    assert versions.is_news(A, "8", during_reconcile=False)
    assert versions.is_news(B, "7", during_reconcile=False)


def test_an_event_may_come_before_the_answer_to_its_write(versions: ResourceVersions) -> None:
    """During a look nothing is news; at its end its own writing, known by then, still is none."""
    assert not versions.is_news(A, "7", during_reconcile=True)
    versions.record_settled(A, "7")
    assert not versions.needs_reconcile_after(A)


def test_another_s_change_during_a_look_asks_for_one_more(versions: ResourceVersions) -> None:
    """The last version that was heard of counts, once."""
    assert not versions.is_news(A, "7", during_reconcile=True)
    assert not versions.is_news(A, "8", during_reconcile=True)
    versions.record_settled(A, "7")
    assert versions.needs_reconcile_after(A)
    assert not versions.needs_reconcile_after(A)


def test_a_job_that_is_gone_leaves_nothing(versions: ResourceVersions) -> None:
    """A job of its name whose version is the same by chance is news."""
    versions.record_settled(A, "7")
    versions.forget(A)
    assert versions.is_news(A, "7", during_reconcile=False)
