"""Specs that make no job: what the status says, and when they are read again."""

from dataclasses import replace

import pytest
from support.jobs import job
from support.planworld import FIXED, World

from ringtrain_operator.errors import Invalid, Problem
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.plan import plan_object
from ringtrain_operator.plan.planning import TEMPLATE_AGAIN_S
from ringtrain_operator.spec.training_template import Template

MISSING = Invalid([Problem("spec.templateRef", "names a TrainingTemplate that does not exist")])
BAD = Template("TrainingTemplate", "t", {"slotsPerWorker": 0})


@pytest.mark.parametrize(
    ("observed", "again_s", "message"),
    [
        pytest.param({}, None, "slotsPerWorker", id="the-jobs-own"),
        pytest.param({"template_problem": MISSING}, TEMPLATE_AGAIN_S, "does not exist", id="template-missing"),
        pytest.param({"template": BAD}, TEMPLATE_AGAIN_S, "(the job merged with TrainingTemplate t", id="template-bad"),
    ],
)
def test_an_invalid_job_is_read_again_if_its_template_may_change(
    observed: dict[str, object], again_s: float | None, message: str
) -> None:
    """No event of the job tells the operator of a new template. A change of the job's own spec is such an event."""
    w = World(job(slotsPerWorker=0))
    found: Observed = replace(w.observed(), **observed)  # type: ignore[arg-type]
    plan = plan_object(w.job, found, w.now, FIXED)
    assert plan.requeue_after_s == again_s
    assert plan.status is not None
    assert plan.status["state"] == "Rejected"
    assert message in plan.status["message"]
