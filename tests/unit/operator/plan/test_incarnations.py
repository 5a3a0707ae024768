"""Times at which the next pod of a lost worker may be created."""

from datetime import UTC, datetime, timedelta

import pytest

from ringtrain_operator.status.ledger import Incarnations, Ledger, Loss
from ringtrain_operator.status.model import JobStatus
from ringtrain_operator.workers.incarnations import next_creation_time

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ages_s", "pause_s"),
    [([], None), ([0], None), ([5, 0], 1), ([9, 5, 0], 2), ([3599, 0], 1), ([3600, 0], None), ([7200, 3600, 0], None)],
    ids=str,
)
def test_losses_within_an_hour_double_the_pause(ages_s: list[int], pause_s: int | None) -> None:
    """From the second one on. Losses of other workers, and those an hour before the last, do not count."""
    ages = [(1, age) for age in ages_s] + [(None, 2), (2, 1), (2, 1)]
    losses = tuple(
        Loss(worker=worker, pod="pod", incarnation=1, attempt=1, cause="it is lost", time=NOW - timedelta(seconds=age))
        for worker, age in ages
    )
    status = JobStatus(ledger=Ledger(incarnations=Incarnations(losses=losses)))
    assert next_creation_time(status, 1) == (None if pause_s is None else NOW + timedelta(seconds=pause_s))
