"""The commands that `dtj` has."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.jobs import job

from ringtrain_operator.cli.main import main


def test_the_help_has_what_people_use() -> None:
    """`dtj -h` lists commands for people; the operator, which a container runs, is there and not listed."""
    result = CliRunner().invoke(main, ["-h"])
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"describe", "why", "logs", "local"} <= set(listed)
    assert "operator" not in listed
    assert CliRunner().invoke(main, ["operator", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--workers", "0"], "'--workers': 0", id="no-worker"),
        pytest.param(["--connections", "0"], "'--connections': 0", id="no-connection"),
        pytest.param(["--resync", "nan"], "'--resync': 'nan'", id="no-time"),
        pytest.param(["--log-level", "loud"], "'--log-level': 'loud'", id="no-level"),
        pytest.param(["--listen", "abc"], "listen is 'abc'; expected host:port", id="no-address"),
        pytest.param(["--listen", ":99999"], "listen is ':99999'; expected host:port", id="no-port"),
    ],
)
def test_the_operator_does_not_start_with_what_makes_no_sense(words: list[str], said: str) -> None:
    """With no worker it was ready, and looked at no job; port 99999 was 34463."""
    result = CliRunner().invoke(main, ["operator", *words, "--kubeconfig", "/nowhere"])
    assert result.exit_code == 2
    assert said in result.output


def test_a_mistyped_command_gets_a_hint() -> None:
    """The command that was meant, where one is near."""
    result = CliRunner().invoke(main, ["lst"])
    assert result.exit_code == 2
    assert "No such command 'lst'. Did you mean 'list'?" in result.output
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output


def test_describe_is_why() -> None:
    """kubectl's word does the same."""
    assert "Say why the job is in the state" in CliRunner().invoke(main, ["describe", "--help"]).output


def test_every_pod_of_a_job_is_rendered(tmp_path: Path) -> None:
    """Data workers and the evaluator, too."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job(dataWorkers={"replicas": 2}, evaluator={})))
    result = CliRunner().invoke(main, ["render", str(path)])
    assert result.exit_code == 0, result.output
    pods = [obj["metadata"]["name"] for obj in yaml.safe_load_all(result.stdout) if obj["kind"] == "Pod"]
    gang = ["digits-launcher", "digits-worker-0", "digits-worker-1"]
    assert pods == [*gang, "digits-data-0", "digits-data-1", "digits-evaluator"]


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_list_is_its_items(command: str, tmp_path: Path) -> None:
    """`kubectl get --output=yaml` of several jobs is a List; what kubectl applies, dtj reads."""
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [job(), job("faces")]}))
    result = CliRunner().invoke(main, [command, str(path)])
    assert result.exit_code == 0, result.output
    assert "digits" in result.stdout
    assert "faces" in result.stdout
