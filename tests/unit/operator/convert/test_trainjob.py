"""`dtj convert` on TrainJobs of Kubeflow Trainer: each field is carried over, or named as left out."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ringtrain_operator.cli.main import main
from ringtrain_operator.convert.trainjob import convert_trainjob
from ringtrain_operator.errors import SpecInvalid

FILE = Path(__file__).parents[3] / "corpus/trainjobs/torch.yaml"
MPI = """
metadata: {name: pi}
spec:
  mlPolicy:
    numNodes: 3
    mpi: {numProcPerNode: 2, mpiImplementation: OpenMPI, sshAuthMountPath: /keys, runLauncherAsNode: true}
  template:
    spec:
      replicatedJobs:
      - name: launcher
        template: {spec: {template: {spec: {containers: [{name: node, image: mpi:1, command: [mpirun, pi]}]}}}}
      - name: node
        template: {spec: {template: {spec: {containers: [{name: node, image: mpi:1, command: [sshd]}]}}}}
"""


def documents() -> list[dict[str, Any]]:
    """The job and its runtime."""
    return list(yaml.safe_load_all(FILE.read_text()))


def test_torch() -> None:
    """What the job says is laid over what its runtime says; torchrun's own words are left out."""
    job, runtime = documents()
    made = convert_trainjob(job, runtime).manifest
    spec, container = made["spec"], made["spec"]["worker"]["template"]["spec"]["containers"][0]
    assert made["metadata"] == {"name": "fashion", "namespace": "team", "labels": {"team": "vision"}}
    assert (spec["worker"]["replicas"], spec["worker"]["devices"]) == (3, {"nvidia.com/gpu": 2})
    assert container["command"] == ["python", "-u", "train.py", "--epochs", "3"]
    assert container["image"] == "registry.example/fashion:2"
    assert container["env"] == [{"name": "OTHER", "value": "1"}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    assert container["resources"] == {"limits": {"memory": "16Gi"}}
    assert spec["worker"]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert spec["scheduling"] == {"gang": "Coscheduling"}
    assert spec["runPolicy"] == {
        "cleanPodPolicy": "None",
        "suspend": True,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 60,
        "backoffLimit": 2,
    }


@pytest.mark.parametrize(
    "expected",
    [
        "torchrun --nnodes 2 --rdzv-backend=c10d is left out",
        "numProcPerNode: auto is left out",
        "replicatedJobs[dataset-initializer] is left out",
        "replicatedJobs[node] has backoffLimit, which is left out",
        "spec.initializer.dataset.storageUri is left out: data and models are loaded by",
        "spec.managedBy is left out: it names a controller",
        "runtime.spec.podGroupPolicy.coscheduling.scheduleTimeoutSeconds is left out",
    ],
)
def test_what_is_left_out_is_named(expected: str) -> None:
    """With the reason where there is one to tell."""
    assert any(expected in note for note in convert_trainjob(*documents()).notes)


@pytest.mark.parametrize("unknown", ["spec.fresh", "spec.trainer.fresh", "runtime.spec.mlPolicy.torch.fresh"])
def test_fields_of_later_versions_are_named(unknown: str) -> None:
    """Nothing that is set goes unmentioned, whatever it is called."""
    job, runtime = copy.deepcopy(documents())
    found: Any = runtime if unknown.startswith("runtime") else job
    *path, last = unknown.removeprefix("runtime.").split(".")
    for name in path:
        found = found[name]
    found[last] = "x"
    assert f"{unknown} is left out" in convert_trainjob(job, runtime).notes


def test_labels_and_annotations_reach_the_pods() -> None:
    """A replicated job's own go to its pods, where the pod template has none of the name; a set's to the job."""
    job, runtime = documents()
    runtime["spec"]["template"]["metadata"] = {"labels": {"team": "other", "set": "1"}}
    job["spec"]["annotations"] = {"owner": "me"}
    of_job = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer", "a": "1", "b": "1"}}
    node = next(one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"] if one["name"] == "node")
    node["template"]["metadata"] = of_job | {"annotations": {"c": "3"}}
    node["template"]["spec"]["template"]["metadata"] = {"labels": {"b": "2"}}
    made = convert_trainjob(job, runtime).manifest
    assert made["metadata"]["labels"] == {"team": "vision", "set": "1"}
    assert made["metadata"]["annotations"] == {"owner": "me"}
    template = made["spec"]["worker"]["template"]
    assert template["metadata"] == {"labels": {"a": "1", "b": "2"}, "annotations": {"c": "3"}}


def test_mpi() -> None:
    """The launcher's command is mpirun's; it counts as a node where it runs ranks."""
    job = documents()[0]
    job["spec"] = {"runtimeRef": {"name": "pi"}, "trainer": {"args": ["10"]}}
    converted = convert_trainjob(job, yaml.safe_load(MPI))
    spec = converted.manifest["spec"]
    assert spec["backend"] == "mpi"
    assert spec["mpi"] == {"implementation": "OpenMPI", "runLauncherAsWorker": True}
    assert (spec["worker"]["replicas"], spec["slotsPerWorker"]) == (2, 2)
    assert "command" not in spec["worker"]["template"]["spec"]["containers"][0]
    [main_container] = spec["launcher"]["template"]["spec"]["containers"]
    assert (main_container["command"], main_container["args"]) == (["mpirun", "pi"], ["10"])
    assert any("sshAuthMountPath is left out: there are no ssh keys" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("words", "trainer", "policy", "slots"),
    [
        (["--nproc-per-node=3"], {"numProcPerNode": 2}, 4, 3),
        ([], {"numProcPerNode": 2}, 4, 2),
        ([], {}, 4, 4),
        (["--nproc_per_node", "gpu"], {}, 4, None),
        ([], {}, "auto", None),
    ],
    ids=["command", "job", "runtime", "as-many-as-gpus", "auto"],
)
def test_ranks_of_a_node(words: list[str], trainer: dict[str, Any], policy: object, slots: int | None) -> None:
    """torchrun takes its own word before its variable, and that is the job's before the runtime's."""
    job, runtime = documents()
    job["spec"] = {"runtimeRef": {"name": "x"}, "trainer": {"command": ["torchrun", *words, "a.py"], **trainer}}
    runtime["spec"]["mlPolicy"] = {"torch": {"numProcPerNode": policy}}
    converted = convert_trainjob(job, runtime)
    assert converted.manifest["spec"].get("slotsPerWorker") == slots
    assert any("numProcPerNode" in note for note in converted.notes) is (slots is None)


def test_variables_of_the_job_reach_all_ranks() -> None:
    """Trainer gives them to the launcher and to the nodes, where the launcher counts as one."""
    job = documents()[0]
    job["spec"] = {"runtimeRef": {"name": "pi"}, "trainer": {"env": [{"name": "SIZE", "value": "9"}]}}
    spec = convert_trainjob(job, yaml.safe_load(MPI)).manifest["spec"]
    for role in ("launcher", "worker"):
        assert spec[role]["template"]["spec"]["containers"][0]["env"] == [{"name": "SIZE", "value": "9"}]


@pytest.mark.parametrize(
    ("trainer", "workers"),
    [({"numNodes": 1}, 1), ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}, 3)],
    ids=["one-node", "devices"],
)
def test_nodes_are_workers_where_the_launcher_cannot_be_one(trainer: dict[str, Any], workers: int) -> None:
    """A gang has a worker, and a launcher no devices: the ranks are as many as there, and all have theirs."""
    job = documents()[0]
    job["spec"] = {"runtimeRef": {"name": "pi"}, "trainer": trainer}
    converted = convert_trainjob(job, yaml.safe_load(MPI))
    spec = converted.manifest["spec"]
    assert (spec["worker"]["replicas"], spec["mpi"]) == (workers, {"implementation": "OpenMPI"})
    assert any("runLauncherAsNode is left out" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"runtimeRef": {}}, "spec.runtimeRef: is {}, expected a name"),
        ({"runtimeRef": {"name": "x", "kind": "Other"}}, "expected a name and one of ClusterTrainingRuntime"),
        ({"trainer": {"numNodes": "many"}}, "spec.trainer.numNodes: is 'many', expected a whole number"),
        ({"trainer": {}}, "spec.trainer.command: is missing"),
        ({"trainer": {"command": "torchrun"}}, "spec.trainer.command"),
    ],
    ids=["no-runtime", "kind", "nodes", "no-command", "command"],
)
def test_what_is_wrong_is_told_by_field(patch: dict[str, Any], expected: str) -> None:
    """With the TrainJob's own paths."""
    job, runtime = documents()
    job["spec"] |= patch
    with pytest.raises(SpecInvalid) as refused:
        convert_trainjob(job, runtime)
    assert expected in str(refused.value)


def test_the_command(tmp_path: Path) -> None:
    """The runtime is found in the file; without it the way out is told."""
    result = CliRunner().invoke(main, ["convert", str(FILE)])
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout)["kind"] == "DistributedTrainingJob"
    assert "fashion: spec.managedBy is left out" in result.stderr
    alone = tmp_path / "job.yaml"
    alone.write_text(yaml.safe_dump(documents()[0]))
    result = CliRunner().invoke(main, ["convert", str(alone), "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "ClusterTrainingRuntime torch-distributed is needed; put it into the file" in result.stderr
