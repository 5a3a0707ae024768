"""Complaints of users of other elastic runtimes, each with the test that shows its absence here."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

COMPLAINTS = {
    "survivors deadlock with newcomers": "ring/test_elastic.py::test_a_world_shrinks_and_grows",
    "samples are repeated after a graceful removal": (
        "ring/test_elastic_ledger.py::test_each_sample_counts_once_an_epoch"
    ),
    "indices that were processed are lost": "unit/runtime/elastic/test_shard.py::test_every_sample_once_an_epoch",
    "all workers die although two survive": "integration/runtime/test_elastic_run.py::test_shrink",
    "the job succeeds when a pod is deleted": (
        "integration/operator/test_elastic.py::test_a_worker_that_is_taken_away_is_made_anew"
    ),
    "process sets do not work in an elastic job": "ring/test_elastic.py::test_process_sets_are_made_again",
    "a newcomer hangs in its first broadcast": (
        "../plugins/torch/tests/test_elastic.py::test_a_newcomer_that_broadcasts_first_is_told_at_once"
    ),
    "the epoch is wrong after a reset": "unit/runtime/elastic/test_shard.py::test_epochs_go_on_where_they_were",
    "all is lost with the coordinator": (
        "integration/runtime/test_elastic_launcher.py::test_the_launchers_pod_is_lost"
    ),
}


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_there_is_a_test_against(complaint: str) -> None:
    """The test that the table names is there."""
    path, _, name = COMPLAINTS[complaint].partition("::")
    found = re.findall(r"^(?:async )?def (test_\w+)\(", (TESTS / path).read_text(), re.M)
    assert name in found, f"{path} has no {name}; it has {', '.join(found)}"
