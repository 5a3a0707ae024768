"""`dtj convert` on TrainJobs of Kubeflow Trainer: each field is carried over, or named as left out."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.commands import completed
from support.deadlines import patient
from support.source_rules import TRAINER, TRAINER_RANKS, TRAINER_RUNTIMES

from ringtrain_client.cli.main import main
from ringtrain_client.local.manifest import is_job
from ringtrain_client.local.templates import LocalTemplates
from ringtrain_convert.metadata import Converted
from ringtrain_convert.trainjob import convert_trainjob
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import name_in_metadata, parse_job

FILE = Path(__file__).parents[3] / "tests/corpus/trainjobs/torch.yaml"
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
    """The job's fields override its runtime's; torchrun's own arguments are left out."""
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
        "dataset-initializer: init containers of the first worker, which run again if the gang restarts",
        "spec.initializer.model.storageUri is left out: the runtime has no job for it",
        "replicatedJobs[other] is left out: expected only nodes, initializers, a launcher",
        "spec.managedBy is left out: it names a controller",
        "runtime.spec.podGroupPolicy.coscheduling.scheduleTimeoutSeconds is left out",
    ],
)
def test_what_is_left_out_is_named(expected: str) -> None:
    """Notes contain the reason if there is one."""
    job, runtime = documents()
    job["spec"]["initializer"]["model"] = {"storageUri": "hf://a/b"}
    runtime["spec"]["template"]["spec"]["replicatedJobs"].append({"name": "other"})
    assert any(expected in note for note in convert_trainjob(job, runtime).notes)


@pytest.mark.parametrize("unknown", ["spec.fresh", "spec.trainer.fresh", "runtime.spec.mlPolicy.torch.fresh"])
def test_fields_of_later_versions_are_named(unknown: str) -> None:
    """A note mentions every field that is set, also unknown ones."""
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
    of_set = {"jobset.sigs.k8s.io/jobset-name": "fashion", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    assert template["metadata"] == {"labels": {"a": "1", "b": "2", **of_set}, "annotations": {"c": "3"}}


def test_the_index_of_a_pod() -> None:
    """An indexed Job's annotation and label, as a field and in a selector; labels that none has are named."""
    job, runtime = documents()
    index = "batch.kubernetes.io/job-completion-index"
    node = next(one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"] if one["name"] == "node")
    pod = node["template"]["spec"]["template"]["spec"]
    items = [
        {"path": name, "fieldRef": {"fieldPath": f"metadata.{kind}['{index}']"}}
        for name, kind in (("a", "annotations"), ("b", "labels"))
    ]
    pod["volumes"] = [{"name": "info", "downwardAPI": {"items": items}}]
    terms = [{"key": index, "operator": "Exists"}, {"key": "batch.kubernetes.io/controller-uid", "operator": "Exists"}]
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchExpressions": terms},
        }
    ]
    converted = convert_trainjob(job, runtime)
    made = converted.manifest["spec"]["worker"]["template"]["spec"]
    paths = {one["fieldRef"]["fieldPath"] for one in made["volumes"][0]["downwardAPI"]["items"]}
    assert paths == {"metadata.labels['ringtrain.dev/worker-index']"}
    selector = made["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"]
    assert selector[0]["key"] == "ringtrain.dev/worker-index"
    assert any(
        "reads the label batch.kubernetes.io/controller-uid, which no pod has" in note for note in converted.notes
    )


def test_what_the_job_patches_of_its_runtime() -> None:
    """A strategic merge as in Trainer: maps and named lists are merged, other lists replaced, in order; spec.trainer
    overrides the result."""
    job, runtime = documents()
    env = [{"name": "OTHER", "value": "2"}, {"name": "NEW", "value": "1"}]
    main = {"name": "node", "env": env, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
    pod = {"nodeSelector": {"zone": "a"}, "containers": [main], "volumes": [volume]}
    pods = {"metadata": {"labels": {"more": "yes"}}, "spec": pod}
    replicated = [{"name": "node", "template": {"spec": {"template": pods}}}, {"name": "none", "template": {}}]
    job["spec"]["runtimePatches"] = [
        {"manager": "m", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    ]
    taint = {"key": "gpu", "operator": "Exists"}
    job["spec"]["podTemplateOverrides"] = [
        {"targetJobs": [{"name": "node"}], "spec": {"tolerations": [taint], "nodeSelector": {"zone": "b"}}}
    ]
    before = copy.deepcopy(runtime)
    converted = convert_trainjob(job, runtime)
    template = converted.manifest["spec"]["worker"]["template"]
    spec = template["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "b"}
    assert (spec["tolerations"], volume in spec["volumes"]) == ([taint], True)
    assert spec["containers"][0]["image"] == "registry.example/fashion:2"
    assert {one["name"]: one["value"] for one in spec["containers"][0]["env"]} == {
        "OTHER": "2",
        "NEW": "1",
        "NCCL_DEBUG": "WARN",
    }
    assert {"name": "data", "mountPath": "/data"} in spec["containers"][0]["volumeMounts"]
    assert template["metadata"]["labels"]["more"] == "yes"
    assert any("runtimePatches[0] is left out: the runtime has no replicated job 'none'" in n for n in converted.notes)
    assert runtime == before


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


GPUS = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 4, "cpu": 9}}}


@pytest.mark.parametrize(
    ("words", "trainer", "policy", "slots"),
    [
        (["--nproc-per-node=3"], {"numProcPerNode": 2}, 4, 3),
        ([], {"numProcPerNode": 2}, 4, 2),
        ([], {}, 4, 4),
        (["--nproc_per_node", "gpu"], GPUS, 3, 4),
        ([], GPUS, "auto", 4),
        ([], GPUS, None, 4),
        ([], {"resourcesPerNode": {"limits": {"memory": "1Gi"}}}, "cpu", 1),
        ([], GPUS, "cpu", 9),
    ],
    ids=["command", "job", "runtime", "as-many-as-gpus", "auto-gpus", "gpus", "cpu-of-none", "cpu-beside-gpus"],
)
def test_ranks_of_a_node(words: list[str], trainer: dict[str, Any], policy: object, slots: int) -> None:
    """torchrun takes its own word before its variable, and that is the job's before the runtime's."""
    torch = {} if policy is None else {"numProcPerNode": policy}
    made = of_source({"torch": torch}, ["torchrun", *words, "a.py"], **trainer).manifest["spec"]
    assert made["slotsPerWorker"] == slots
    assert made["worker"]["template"]["spec"]["containers"][0]["command"] == ["python", "-u", "a.py"]


@pytest.mark.parametrize(("of_job", "of_runtime", "ranks"), TRAINER_RANKS.values(), ids=TRAINER_RANKS)
def test_ranks_of_a_node_are_trainers(of_job: dict[str, Any], of_runtime: dict[str, Any], ranks: int) -> None:
    """The number equals that of Trainer's torchrun, even if the node has other devices."""
    job, runtime = documents()
    job["spec"] = {"runtimeRef": {"name": "x"}, "trainer": {"command": ["torchrun", "a.py"], **of_job}}
    containers = runtime["spec"]["template"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    containers["containers"][0]["resources"] = of_runtime
    assert convert_trainjob(job, runtime).manifest["spec"]["slotsPerWorker"] == ranks


@pytest.mark.parametrize(
    ("of_runtime", "of_job", "gpus", "slots"),
    [(1, None, 4, 4), (None, None, 4, 4), (1, None, 0, 1), (2, None, 4, 2), (1, 1, 4, 1), (2, 3, 0, 3)],
)
def test_slots_of_an_mpi_node(of_runtime: int | None, of_job: int | None, gpus: int, slots: int) -> None:
    """A 1 of the runtime means as many as GPUs, one of the job means 1 (plugins/mpi/mpi.go)."""
    job, runtime = documents()[0], yaml.safe_load(MPI)
    resources = {"limits": {"nvidia.com/gpu": gpus, "vpc.amazonaws.com/efa": 32}} if gpus else {}
    job["spec"] = {"runtimeRef": {"name": "pi"}, "trainer": {"numProcPerNode": of_job, "resourcesPerNode": resources}}
    runtime["spec"]["mlPolicy"]["mpi"]["numProcPerNode"] = of_runtime
    assert convert_trainjob(job, runtime).manifest["spec"]["slotsPerWorker"] == slots


@pytest.mark.parametrize(
    ("backoff", "restarts", "attempts"),
    [(None, None, 6), (0, None, 0), (2, None, 2), (0, 3, 3), (2, 3, 11)],
)
def test_retries(backoff: int | None, restarts: int | None, attempts: int) -> None:
    """A Job retries its pods, by default 6 times, and a JobSet restarts all; here the gang restarts (defaults of JobSet
    and Kubernetes)."""
    job, runtime = documents()
    job_set = runtime["spec"]["template"]["spec"]
    job_set["failurePolicy"] = {} if restarts is None else {"maxRestarts": restarts}
    job_set["replicatedJobs"][1]["template"]["spec"]["backoffLimit"] = backoff
    converted = convert_trainjob(job, runtime)
    assert converted.manifest["spec"]["runPolicy"]["backoffLimit"] == attempts
    assert any(f"again, {attempts} times at most" in note for note in converted.notes) == bool(attempts)
    assert not any("backoffLimit" in note for note in converted.notes)


@pytest.mark.parametrize("source", TRAINER)
def test_variables_are_those_of_the_source(source: str) -> None:
    """One process with four devices runs on each of three nodes, and has the variables that Trainer would set."""
    converted = of_source({source: {}}, ["env"], numNodes=3, **GPUS)
    spec = converted.manifest["spec"]
    assert (spec["worker"]["replicas"], spec["slotsPerWorker"]) == (3, 1)
    assert spec["worker"]["devices"] == {"nvidia.com/gpu": 4}
    for rank in range(3):
        agent = {
            "RANK": rank,
            "WORLD_SIZE": 3,
            "MASTER_ADDR": "head",
            "MASTER_PORT": 29400,
            "PATH": "/usr/bin:/bin",
        }
        done = completed(
            spec["worker"]["template"]["spec"]["containers"][0]["command"],
            env={name: str(value) for name, value in agent.items()},
            check=True,
            timeout=patient(30),
        )
        found = dict(line.split("=", 1) for line in done.stdout.splitlines())
        numbers = {"rank": rank, "nodes": 3, "per_node": 4, "workers": 12}
        expected = {name: value.format(**numbers) for name, value in TRAINER[source].items()}
        assert {name: found.get(name) for name in expected} == expected
    assert any(next(iter(TRAINER[source])) in note for note in converted.notes)


def test_a_plain_runtime_starts_one_process_on_a_node() -> None:
    """One process per node, whatever devices the node has, without torch's variables."""
    made = of_source({}, ["./train"], numNodes=2, **GPUS).manifest["spec"]
    assert (made["worker"]["replicas"], made["slotsPerWorker"]) == (2, 1)
    assert made["worker"]["template"]["spec"]["containers"][0]["command"] == ["./train"]


@pytest.mark.parametrize(
    ("policy", "command", "expected"),
    [
        (
            {"torch": {"numProcPerNode": "many"}},
            ["python", "a.py"],
            "numProcPerNode: is 'many', expected a number",
        ),
        ({"new": {}}, ["./train"], "runtime.spec.mlPolicy.new: is not supported, expected one of torch, jax"),
        ({"jax": {}}, ["python", "a.py", "$(A)/$(JAX_PROCESS_ID)"], "has $(JAX_PROCESS_ID), which Kubernetes expands"),
    ],
    ids=["no-number", "another-source", "expanded-too-early"],
)
def test_what_trainer_gives_and_we_can_not(policy: dict[str, Any], command: list[str], expected: str) -> None:
    """The job is refused, and the error describes a solution."""
    with pytest.raises(Invalid) as refused:
        of_source(policy, command)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("policy", "words", "per_node"),
    [({}, ["--nproc-per-node=auto"], "1"), ({"numProcPerNode": "gpu"}, [], "gpu")],
    ids=["cpus", "gpus"],
)
def test_torchrun_stays(policy: dict[str, Any], words: list[str], per_node: str) -> None:
    """If only the node knows how many processes torchrun starts; it has Trainer's variables."""
    converted = of_source({"torch": policy}, ["torchrun", *words, "a.py"], numNodes=2)
    [sh, _, text, _, *command] = converted.manifest["spec"]["worker"]["template"]["spec"]["containers"][0]["command"]
    assert (sh, command) == ("sh", ["torchrun", *words, "a.py"])
    assert f'PET_NPROC_PER_NODE="{per_node}"' in text
    assert converted.manifest["spec"]["slotsPerWorker"] == 1


def of_source(policy: dict[str, Any], command: list[str], **trainer: Any) -> Converted:
    """A TrainJob that runs `command` with a runtime of this mlPolicy."""
    job, runtime = documents()
    job["spec"] = {"runtimeRef": {"name": "x"}, "trainer": {"command": command, **trainer}}
    runtime["spec"]["mlPolicy"] = policy
    return convert_trainjob(job, runtime)


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
        ({"runtimeRef": None}, "spec.runtimeRef: is missing, expected a name"),
        ({"runtimeRef": {"name": "x", "kind": "Other"}}, "expected a name and one of ClusterTrainingRuntime"),
        ({"trainer": {"numNodes": "many"}}, "spec.trainer.numNodes: is 'many', expected a whole number"),
        ({"trainer": {}}, "spec.trainer.command: is missing"),
        ({"trainer": {"command": "torchrun"}}, "spec.trainer.command"),
    ],
    ids=["empty", "no-runtime", "kind", "nodes", "no-command", "command"],
)
def test_what_is_wrong_is_told_by_field(patch: dict[str, Any], expected: str) -> None:
    """Errors contain the TrainJob's paths."""
    job, runtime = documents()
    job["spec"] |= patch
    with pytest.raises(Invalid) as refused:
        convert_trainjob(job, runtime)
    assert expected in str(refused.value)


def test_the_command(tmp_path: Path) -> None:
    """The runtime is in the file; otherwise the error describes the solution."""
    result = CliRunner().invoke(main, ["convert", str(FILE)])
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout)["kind"] == "DistributedTrainingJob"
    assert "fashion: spec.managedBy is left out" in result.stderr
    alone = tmp_path / "job.yaml"
    job = documents()[0]
    job["spec"]["runtimeRef"]["name"] = "ours"
    alone.write_text(yaml.safe_dump(job))
    result = CliRunner().invoke(main, ["convert", str(alone), "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "ClusterTrainingRuntime ours is needed; put it into the file" in result.stderr


@pytest.mark.parametrize(("name", "source", "image", "user"), TRAINER_RUNTIMES)
def test_runtimes_of_trainer_are_known(name: str, source: str, image: str, user: int | None, tmp_path: Path) -> None:
    """A TrainJob without its runtime's file is converted with Trainer's own; the note has the version."""
    trainer = {"command": ["mpirun" if source == "mpi" else "python", "a.py"], "numNodes": 2}
    job = documents()[0] | {"spec": {"runtimeRef": {"name": name}, "trainer": trainer}}
    options = ["convert", "-", "--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(main, options, input=yaml.safe_dump(job))
    assert result.exit_code == 0, result.output
    assert "used as in Trainer 2.3" in result.stderr
    spec = yaml.safe_load(result.stdout)["spec"]
    [container] = spec["worker"]["template"]["spec"]["containers"]
    assert (container["image"], container.get("securityContext", {}).get("runAsUser")) == (image, user)
    if source == "mpi":
        assert (spec["backend"], spec["slotsPerWorker"], spec["worker"]["replicas"]) == ("mpi", 1, 1)
        assert spec["mpi"] == {"implementation": "OpenMPI", "runLauncherAsWorker": True}
    else:
        assert next(iter(TRAINER[source])) in container["command"][2]


STRANGERS = FILE.parents[1] / "strangers/trainjob.yaml"


def test_runtimes_become_templates() -> None:
    """Every convertible job refers to its runtime's template, is shorter, and equals the job without templates."""
    plain, named = (CliRunner().invoke(main, ["convert", str(STRANGERS), *more]) for more in ([], ["--templates"]))
    whole = {name_in_metadata(obj["metadata"]): obj for obj in yaml.safe_load_all(plain.stdout) if is_job(obj)}
    documents = list(yaml.safe_load_all(named.stdout))
    templates = LocalTemplates()
    assert {found.name for found in templates.add(documents)} >= {"torch-distributed", "mpi-distributed", "plain"}
    jobs = {name_in_metadata(obj["metadata"]): obj for obj in documents if is_job(obj)}
    assert jobs.keys() == whole.keys()
    assert len([job for job in jobs.values() if "templateRef" in job["spec"]]) >= 10
    for name, job in jobs.items():
        merged = parse_job(templates.merged_with_template(job))
        assert merged.spec.frozen_digest == parse_job(whole[name]).spec.frozen_digest
        assert len(str(job)) <= len(str(whole[name])) + 70
