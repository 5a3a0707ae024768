"""The command `dtj convert`."""

import pytest
import yaml
from click.testing import CliRunner

from ringtrain_client.cli.main import main

MPIJOB = yaml.safe_load("""
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {containers: [{name: l, image: i, command: [mpirun, a.out]}]}}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: i, resources: {limits: {nvidia.com/gpu: 0}}}]}}
""")


def test_a_job_that_the_cluster_names() -> None:
    """`generateName` counts as in Kubernetes, and `-` is standard input; what is printed is twice the same."""
    made = MPIJOB | {"metadata": {"generateName": "digits-"}}
    results = [CliRunner().invoke(main, ["convert", "-"], input=yaml.safe_dump(made)) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    assert "digits-00000" in results[0].output
    assert results[0].output == results[1].output


def test_what_can_be_converted_is() -> None:
    """Valid jobs are converted although others cannot be, which are named with the field; the exit code is 1."""
    good, torn = (MPIJOB | {"metadata": {"name": name}} for name in ("good", "torn"))
    torn["spec"] = {}
    old = {"apiVersion": "kubeflow.org/v1alpha1", "kind": "MPIJob", "metadata": {"name": "old"}, "spec": {}}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    elder = MPIJOB | {"apiVersion": "kubeflow.org/v1alpha2", "metadata": {"name": "elder"}}
    text = yaml.safe_dump_all([old, torn, good, elder, other])
    result = CliRunner().invoke(main, ["convert", "-"], input=text)
    assert result.exit_code == 1
    made = list(yaml.safe_load_all(result.stdout))
    assert [obj["metadata"]["name"] for obj in made] == ["good", "elder", "c"]
    assert "devices" not in made[0]["spec"]["worker"]  # 0 of one is none
    assert "old: apiVersion: is kubeflow.org/v1alpha1; expected kubeflow.org/v1 or v2beta1" in result.stderr
    assert "torn: spec.mpiReplicaSpecs: is missing" in result.stderr


@pytest.mark.parametrize(
    ("kind", "version", "note"),
    [
        ("MPIJb", "kubeflow.org/v2beta1", "kind is MPIJb; did you mean MPIJob?"),
        ("Jobset", "jobset.x-k8s.io/v1alpha2", "kind is Jobset; did you mean JobSet?"),
        ("MPIJob", "kubflow.org/v2beta1", "apiVersion is kubflow.org/v2beta1; expected kubeflow.org/VERSION"),
        ("TrainJob", "trainer/v1alpha1", "apiVersion is trainer/v1alpha1; expected trainer.kubeflow.org/VERSION"),
        ("TrainingRuntme", "trainer.kubeflow.org/v1alpha1", "kind is TrainingRuntme; did you mean TrainingRuntime?"),
        ("CronJob", "batch/v1", ""),
        ("DistributedTrainingJob", "ringtrain.ai/v1", ""),
        ("ConfigMap", "v1", ""),
    ],
)
def test_a_misspelt_kind_beside_a_job_is_named(kind: str, version: str, note: str) -> None:
    """The object is printed unchanged, with a note on stderr."""
    other = {"apiVersion": version, "kind": kind, "metadata": {"name": "other"}}
    text = yaml.safe_dump_all([MPIJOB | {"metadata": {"name": "good"}}, other])
    result = CliRunner().invoke(main, ["convert", "-"], input=text)
    assert (result.exit_code, list(yaml.safe_load_all(result.stdout))[1]) == (0, other)
    notes = [line for line in result.stderr.splitlines() if line.startswith("other: ")]
    assert notes == ([f"other: is not converted: {note}"] if note else [])


@pytest.mark.parametrize("text", ["", "a: 1", "- a", "metadata: {name: a}\n---\n"])
def test_a_file_without_a_kind_is_named(text: str) -> None:
    """The error says what was found and what was expected."""
    result = CliRunner().invoke(main, ["convert", "-"], input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: -: has no object with a kind; expected an MPIJob, PyTorchJob, TFJob, ")
    assert "but no" not in result.stderr
