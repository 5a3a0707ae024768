"""`dtj validate` names the field of every template that Kubernetes refuses, and accepts the others."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from contract.pod_cases import MISPLACED, NEVER_STARTS, RIGHT, WRONG, PodCase
from contract.spec_cases import REJECTED, Case, manifest, worker

from ringtrain_client.cli.main import main
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job

_TEMPLATE = "spec.worker.template"
# Words of pydantic, PyYAML and re that say nothing to a user.
_FOREIGN = ("input should", "should match pattern", "should have at", "pydantic", "[type=")


@pytest.mark.parametrize("case", WRONG + NEVER_STARTS + MISPLACED, ids=lambda case: case.field[-60:])
def test_a_wrong_template_is_refused_by_its_field(case: PodCase) -> None:
    """One problem of one line, with the field, and what is expected there."""
    with pytest.raises(Invalid) as refusal:
        parse_job(case.manifest)
    (problem,) = refusal.value.problems
    assert problem.path == f"{_TEMPLATE}.{case.field}"
    assert case.says in problem.message
    assert "\n" not in problem.message
    assert not problem.message.endswith("is missing")  # without what is expected


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_template_is_accepted(case: PodCase) -> None:
    """Values at a limit, and values that look wrong, are no problems."""
    parse_job(case.manifest)


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    """A line for each; a misspelt field hides no other problem of its container."""
    container = {
        "name": "Train_1",
        "resorces": {},
        "ports": [{"containerPort": 99999}],
        "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "2Gi", "cpu": "-1"}},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(worker=worker(container, {"nodeSelector": {"a": "b c"}}))))
    result = CliRunner().invoke(main, ["validate", str(file)])
    assert result.exit_code == 1
    fields = [line.split(": ")[1].removeprefix(f"{_TEMPLATE}.spec.") for line in result.output.splitlines()]
    main_container = "containers[0]"
    assert fields == [
        f"{main_container}.name",
        f"{main_container}.ports[0].containerPort",
        f"{main_container}.resorces",
        f"{main_container}.resources.limits[cpu]",
        f"{main_container}.resources.requests[memory]",
        "nodeSelector[a]",
    ]


def test_a_device_of_the_section_needs_no_limit() -> None:
    """`worker.devices` sets requests and limits."""
    resources = {"requests": {"nvidia.com/gpu": 2}}
    parse_job(manifest(worker=worker({"resources": resources}, devices={"nvidia.com/gpu": 2})))


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case.id)
def test_no_message_is_in_a_librarys_words(case: Case) -> None:
    """Problems of the job's own fields are in plain words, too."""
    with pytest.raises(Invalid) as refusal:
        parse_job(case.manifest)
    assert not [word for word in _FOREIGN if word in str(refusal.value)]
