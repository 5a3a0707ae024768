"""A job is named JOB or NAMESPACE/JOB, by every command."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ringtrain_client.cli.session import ClusterOptions, cluster_options, job_argument, local_or_cluster_options


@click.command()
@job_argument
@local_or_cluster_options
def one(name: str, cluster: ClusterOptions | None) -> None:
    """As `dtj why`."""
    click.echo(f"{cluster.namespace if cluster else 'here'} {name}")


@click.command()
@click.argument("names", nargs=-1)
@cluster_options
def several(names: tuple[str, ...], cluster: ClusterOptions) -> None:
    """As `dtj delete`."""
    click.echo(f"{cluster.namespace} {' '.join(names)}")


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        (one, "digits -n team", "team digits\n"),
        (one, "team/digits", "team digits\n"),
        (one, "team/digits -n team", "team digits\n"),
        (one, "team/digits --local", "here team/digits\n"),
        (one, "runs/digits --runs runs", "here runs/digits\n"),
        (several, "a b", " a b\n"),
        (several, "team/a team/b", "team a b\n"),
        (several, "team/a b -n team", "team a b\n"),
        (one, "team/digits -n other", "team/digits: expected JOB or NAMESPACE/JOB, all in one namespace (-n)"),
        (several, "team/a b", "team/a b: expected JOB"),
        (several, "team/a other/b", "team/a other/b: expected JOB"),
        (one, "team/", "team/: expected JOB"),
    ],
)
def test_a_namespace_before_the_name(
    command: click.Command, words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of --namespace, which may be given, too; a run's folder is not taken for one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/digits").mkdir(parents=True)
    found = CliRunner().invoke(command, words.split())
    assert says in found.output
    assert found.exit_code == (2 if "expected" in says else 0)


def test_a_folder_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a run on this machine, without an option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "runs/digits").mkdir(parents=True)
    assert CliRunner().invoke(one, ["runs/digits"]).output == "here runs/digits\n"
