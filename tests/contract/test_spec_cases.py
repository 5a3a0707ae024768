"""The models accept what the table accepts and refuse what it refuses, naming the field."""

from typing import Any

import pytest
from contract.spec_cases import ACCEPTED, REJECTED, TEMPLATES, UNKNOWN_FIELDS, UPDATES, Case, Update, manifest

from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job, update_problems


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda c: c.id)
def test_accepted(case: Case) -> None:
    """The job is parsed without a problem."""
    assert parse_job(case.manifest).name == case.manifest["metadata"]["name"]


@pytest.mark.parametrize("case", REJECTED + UNKNOWN_FIELDS + TEMPLATES, ids=lambda c: c.id)
def test_rejected(case: Case) -> None:
    """Exactly one problem is told, with the field's path and the way out."""
    with pytest.raises(Invalid) as refusal:
        parse_job(case.manifest)
    (problem,) = refusal.value.problems
    assert case.path in problem.path
    assert case.says in problem.message


@pytest.mark.parametrize("case", UPDATES, ids=lambda c: c.id)
def test_updates(case: Update) -> None:
    """A change that needs a suspended job is refused with the field's path; other changes are accepted."""
    new, old = parse_job(case.new).spec, parse_job(case.old).spec
    problems = update_problems(new, old, {"ledger": {"hasRun": True}})
    assert [problem.path for problem in problems] == ([case.path] if case.path else [])


@pytest.mark.parametrize("case", UPDATES, ids=lambda c: c.id)
@pytest.mark.parametrize("status", [None, {"state": "Pending", "ledger": {"hasRun": False}}])
def test_updates_of_a_job_that_never_ran(case: Update, status: dict[str, Any] | None) -> None:
    """It may be corrected; who runs it stays as it is."""
    problems = update_problems(parse_job(case.new).spec, parse_job(case.old).spec, status)
    assert [problem.path for problem in problems] == (["spec.managedBy"] if case.path == "spec.managedBy" else [])


def test_a_default_that_is_written_out_is_no_change() -> None:
    """Nor is what may change at any time: a job that runs goes on."""
    whole = manifest(slotsPerWorker=2, checkpoint={"uri": "s3://a/b"}, dataWorkers={}, evaluator={})
    written_out = {**whole["spec"], "backend": "ring", "runPolicy": {"suspend": True}, "logs": {"report": False}}
    assert parse_job({**whole, "spec": written_out}).spec.frozen_digest == parse_job(whole).spec.frozen_digest


@pytest.mark.parametrize("case", UPDATES)
def test_what_a_job_began_with_follows_what_may_change(case: Update) -> None:
    """A change that is refused while a job runs gives another digest; one that may come at any time, the same."""
    old, new = parse_job(case.old).spec, parse_job(case.new).spec
    if not old.run_policy.suspend and case.path != "spec.managedBy":
        assert (new.frozen_digest == old.frozen_digest) is (case.path == "")
