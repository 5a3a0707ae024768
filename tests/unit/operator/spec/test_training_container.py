"""The container that trains in a template with several."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.jobs import job
from support.planworld import World, condition

from ringtrain_client.cli.main import main
from ringtrain_operator.build import build_worker_pod
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import Template, merged_spec

Json = dict[str, Any]


def job_of(names: list[str], default: str = "") -> Json:
    """A job whose worker has containers of these names."""
    made = job()
    template = made["spec"]["worker"]["template"]
    template["spec"]["containers"] = [{"name": name, "image": "x:1", "command": [f"./{name}"]} for name in names]
    if default:
        template["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": default}}
    return made


@pytest.mark.parametrize(
    ("names", "default", "trains"),
    [
        (["proxy", "main"], "", "proxy"),
        (["proxy", "pytorch"], "", "pytorch"),
        (["proxy", "train"], "", "train"),
        (["worker", "proxy", "trainer"], "", "trainer"),
        (["pytorch", "main", "proxy"], "main", "main"),
        (["proxy", "node"], "gone", "node"),
    ],
)
def test_the_training_container(names: list[str], default: str, trains: str) -> None:
    """The annotation's container, else one of a usual name, else the first; its pod, condition and message agree."""
    obj = job_of(names, default)
    containers = build_worker_pod(parse_job(obj), 1, 0)["spec"]["containers"]
    assert [one["name"] for one in containers] == [trains, *(name for name in names if name != trains)]
    assert containers[0]["command"][-2:] == ["--", f"./{trains}"]
    assert all(one["command"] == [f"./{one['name']}"] for one in containers[1:])
    w = World(obj)
    w.settle()
    assert f"container {trains} trains" in condition(w, "Accepted")[2]


def test_validate_names_it(tmp_path: Path) -> None:
    """Only for a pod with several containers."""
    file = tmp_path / "job.json"
    for names in (["proxy", "train"], ["train"]):
        file.write_text(json.dumps(job_of(names)))
        result = CliRunner().invoke(main, ["validate", str(file)])
        assert result.exit_code == 0, result.output
        assert ("container train trains (sidecars: proxy)" in result.output) == (len(names) > 1)


def test_problems_have_the_manifests_index() -> None:
    """Not that of the container in the pod."""
    obj = job_of(["proxy", "other", "train"])
    containers = obj["spec"]["worker"]["template"]["spec"]["containers"]
    del containers[1]["image"], containers[2]["command"]
    with pytest.raises(Invalid) as refused:
        parse_job(obj)
    paths = {problem.path.removeprefix("spec.worker.template.spec.") for problem in refused.value.problems}
    assert paths == {"containers[1].image", "containers[2].command"}


def test_a_job_changes_its_templates_training_container() -> None:
    """By a container without a name."""
    template = Template("TrainingTemplate", "t", job_of(["proxy", "train"])["spec"])
    spec = {"worker": {"template": {"spec": {"containers": [{"command": ["./mine"]}]}}}}
    found = {
        one["name"]: one["command"]
        for one in merged_spec(spec, template.spec)["worker"]["template"]["spec"]["containers"]
    }
    assert found == {"train": ["./mine"], "proxy": ["./proxy"]}
