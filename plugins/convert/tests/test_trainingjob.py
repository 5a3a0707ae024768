"""`dtj convert` on PyTorchJob, TFJob, JAXJob and XGBoostJob, compared with the training operator's rules."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.commands import completed
from support.deadlines import patient
from support.source_rules import TRAINING_OPERATOR

from ringtrain_client.cli.main import main
from ringtrain_convert.trainingjob import convert_trainingjob
from ringtrain_operator.contract import API_VERSION, KIND
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job

# kubeflow/training-operator's pkg/apis/kubeflow.org/v1: default names of containers, and restart policies.
CONTAINERS = {"PyTorchJob": "pytorch", "TFJob": "tensorflow", "JAXJob": "jax", "XGBoostJob": "xgboost"}
SPECS = {"PyTorchJob": "pytorch", "TFJob": "tf", "JAXJob": "jax", "XGBoostJob": "xgb"}
DEFAULT_RETRIES = {"PyTorchJob": 6, "TFJob": 0, "JAXJob": 0, "XGBoostJob": 0}


def job(kind: str, roles: dict[str, int], command: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    """A job whose roles have one template."""
    container = {"name": CONTAINERS[kind], "image": "x:1", "command": command or ["python", "train.py"]}
    replicas = {
        role: {"replicas": count, "template": {"spec": {"containers": [copy.deepcopy(container)]}}}
        for role, count in roles.items()
    }
    field = f"{SPECS[kind]}ReplicaSpecs"
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {field: replicas, **spec},
    }


def main_container(manifest: dict[str, Any]) -> dict[str, Any]:
    """The one that trains."""
    [container, *_] = manifest["spec"]["worker"]["template"]["spec"]["containers"]
    return dict(container)


def refusal(obj: dict[str, Any]) -> str:
    """Return the reason why the job is refused."""
    with pytest.raises(Invalid) as refused:
        convert_trainingjob(obj)
    return str(refused.value)


def found_by(command: list[str], rank: int, pods: int) -> dict[str, str]:
    """The environment of a command that prints it, started as the agent starts it."""
    agent = {"RANK": rank, "WORLD_SIZE": pods, "MASTER_ADDR": "head", "MASTER_PORT": 29400}
    environment = {"PATH": "/usr/bin:/bin", **{name: str(value) for name, value in agent.items()}}
    done = completed(command, env=environment, check=True, timeout=patient(30))
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("kind", TRAINING_OPERATOR)
def test_variables_are_those_of_the_source(kind: str) -> None:
    """Each variable that the source's operator sets has, in each rank, the source's value."""
    roles = {"Worker": 3} if kind == "JAXJob" else {"Master": 1, "Worker": 2}
    manifest = convert_trainingjob(job(kind, roles, ["env"])).manifest
    assert (manifest["spec"]["worker"]["replicas"], manifest["spec"]["slotsPerWorker"]) == (3, 1)
    for rank in range(3):
        found = found_by(main_container(manifest)["command"], rank, 3)
        expected = {name: value.format(rank=rank, nodes=3) for name, value in TRAINING_OPERATOR[kind].items()}
        assert {name: found.get(name) for name in expected} == expected


def test_elastic_variables() -> None:
    """A script that starts torchrun gets the rendezvous of its nodes; the job has the same limits of its size."""
    policy = {"minReplicas": 1, "maxReplicas": 4, "rdzvId": 'a "b"', "maxRestarts": 3, "nProcPerNode": 2}
    converted = convert_trainingjob(job("PyTorchJob", {"Worker": 2}, ["env"], elasticPolicy=policy))
    found = found_by(main_container(converted.manifest)["command"], 1, 2)
    assert {name: value for name, value in found.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "head",
        "PET_MASTER_PORT": "29400",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "head:29400",
        "PET_RDZV_ID": 'a "b"',
        "PET_MAX_RESTARTS": "3",
    }
    assert found["WORLD_SIZE"] == "4"
    elastic = {"minReplicas": 1, "maxReplicas": 4, "onLoss": "Restart"}
    assert converted.manifest["spec"]["elastic"] == elastic
    assert [note for note in converted.notes if "elasticPolicy" in note] == [
        "spec.elasticPolicy becomes elastic: with 1 to 4 workers, and onLoss: Restart, as torchrun does"
    ]


@pytest.mark.parametrize("backend", ["c10d", "etcd", "etcd-v2"])
def test_where_a_scripts_torchrun_meets(backend: str) -> None:
    """c10d uses a node of the job, another backend the service in the policy; notes mention it."""
    policy = {"rdzvBackend": backend, "rdzvHost": "store", "rdzvPort": 2379, "minReplicas": 2}
    policy["rdzvConf"] = [{"key": "timeout", "value": "9"}, {"key": "close", "value": "1"}]
    converted = convert_trainingjob(job("PyTorchJob", {"Worker": 2}, ["env"], elasticPolicy=policy))
    found = found_by(main_container(converted.manifest)["command"], 0, 2)
    endpoint = "head:29400" if backend == "c10d" else "store:2379"
    assert (found["PET_RDZV_BACKEND"], found["PET_RDZV_ENDPOINT"]) == (backend, endpoint)
    assert found["PET_RDZV_CONF"] == "timeout=9,close=1"
    left = [note for note in converted.notes if "elasticPolicy" in note]
    assert ["(rdzvHost, rdzvPort) is left out" in note for note in left] == [True] * (backend == "c10d")


@pytest.mark.parametrize(
    ("policy", "elastic", "note"),
    [
        ({"minReplicas": 1, "maxReplicas": 2}, {"minReplicas": 1, "maxReplicas": 2, "onLoss": "Restart"}, "becomes"),
        ({"maxReplicas": 2}, None, ""),
        ({"minReplicas": 3, "maxReplicas": 4}, None, "the job has 2 pods, expected 3 to 4"),
        ({"rdzvBackend": "c10d"}, None, ""),
    ],
    ids=["sizes", "one-size", "another-size", "no-size"],
)
def test_sizes_of_an_elastic_job(policy: dict[str, Any], elastic: dict[str, Any] | None, note: str) -> None:
    """Defaults are those of pytorch_defaults.go; all fields without a counterpart are in one note for each reason."""
    more = {"rdzvHost": "h", "rdzvPort": 1, "rdzvId": "i", "rdzvConf": [], "metrics": [{}], "maxRestarts": 2}
    command = ["torchrun", "--nproc-per-node=1", "a.py"]
    converted = convert_trainingjob(job("PyTorchJob", {"Worker": 2}, command, elasticPolicy={**more, **policy}))
    assert converted.manifest["spec"].get("elastic") == elastic
    notes = [one for one in converted.notes if "elasticPolicy" in one]
    assert len(notes) == 3 + bool(note)
    assert any(note in one for one in notes)
    target = {"apiVersion": API_VERSION, "kind": KIND, "name": "job"}
    scaled = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2, "metrics": [{}]}
    assert [one["spec"] for one in converted.others] == [scaled] * bool(elastic)


@pytest.mark.parametrize(
    ("words", "nproc", "devices", "slots"),
    [
        (["--nproc_per_node=3"], "2", 0, 3),
        ([], "2", 0, 2),
        ([], None, 4, 4),
        (["--nproc-per-node=gpu"], "2", 4, 4),
    ],
    ids=["command", "job", "auto", "as-many-as-gpus"],
)
def test_torchrun(words: list[str], nproc: str | None, devices: int, slots: int) -> None:
    """The agent starts what torchrun would, as often on each node."""
    obj = job("PyTorchJob", {"Master": 1, "Worker": 1}, ["torchrun", *words, "--node_rank=$(RANK)", "a.py"])
    obj["spec"] |= {"nprocPerNode": nproc} if nproc else {}
    for replica in obj["spec"]["pytorchReplicaSpecs"].values():
        amounts = {"nvidia.com/gpu": devices, "vpc.amazonaws.com/efa": 16}
        replica["template"]["spec"]["containers"][0]["resources"] = {"limits": amounts}
    converted = convert_trainingjob(obj)
    assert main_container(converted.manifest)["command"] == ["python", "-u", "a.py"]
    assert converted.manifest["spec"]["slotsPerWorker"] == slots
    assert any("PET_* are not set" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("words", "spec", "per_node"),
    [
        ([], {}, "auto"),
        ([], {"nprocPerNode": "cpu"}, "cpu"),
        ([], {"elasticPolicy": {"nProcPerNode": "auto"}}, "auto"),
        (["--nproc-per-node=gpu"], {"nprocPerNode": "2"}, "2"),
        (["--nproc-per-node=2", "--node_rank=$(RANK)", "--master_addr", "$(MASTER_ADDR)"], {}, "auto"),
    ],
    ids=["nowhere", "job", "policy", "command", "program"],
)
def test_torchrun_stays(words: list[str], spec: dict[str, Any], per_node: str, tmp_path: Path) -> None:
    """If only the node knows the number of processes, or the program reads the node's rank, torchrun gets its words
    and the source's variables."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\nenv\necho "words=$*"\n')
    torchrun.chmod(0o755)
    program = ["a.py", "$(RANK)"] if "--nproc-per-node=2" in words else ["a.py"]
    obj = job("PyTorchJob", {"Master": 1, "Worker": 2}, [str(torchrun), *words, *program])
    obj["spec"] |= spec
    converted = convert_trainingjob(obj)
    assert converted.manifest["spec"]["slotsPerWorker"] == 1
    assert any("torchrun stays the process of each pod" in note for note in converted.notes)
    for rank in range(3):
        found = found_by(main_container(converted.manifest)["command"], rank, 3)
        expected = {name: value.format(rank=rank, nodes=3) for name, value in TRAINING_OPERATOR["PyTorchJob"].items()}
        size = 3 * (int(per_node) if per_node.isdecimal() else 1)
        expected |= {"PET_NPROC_PER_NODE": per_node, "WORLD_SIZE": str(size)}
        assert {name: found.get(name) for name in expected} == expected
        line = " ".join([*words, *program])
        assert found["words"] == line.replace("$(RANK)", str(rank)).replace("$(MASTER_ADDR)", "head")


def test_a_process_has_all_devices_of_its_pod() -> None:
    """A pod is one process, as in the source."""
    obj = job("TFJob", {"Worker": 2})
    containers = obj["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers[0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    containers.insert(0, {"name": "sidecar", "image": "y:1"})
    spec = convert_trainingjob(obj).manifest["spec"]
    assert (spec["slotsPerWorker"], spec["worker"]["devices"]) == (1, {"nvidia.com/gpu": 4})
    assert [one["name"] for one in spec["worker"]["template"]["spec"]["containers"]] == ["tensorflow", "sidecar"]


def test_tensorflow() -> None:
    """Chief and workers are ranks, the evaluator runs next to them; notes name the differences in TF_CONFIG."""
    converted = convert_trainingjob(job("TFJob", {"Worker": 2, "chief": 1, "Evaluator": 1, "PS": 0}))
    spec = converted.manifest["spec"]
    assert spec["worker"]["replicas"] == 3
    assert spec["evaluator"]["template"]["spec"]["containers"][0]["command"] == ["python", "train.py"]
    for expected in ("TF_CONFIG has", "the job succeeds when all ranks have", "ranks count from the Chief"):
        assert any(expected in note for note in converted.notes)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_run_policy(kind: str) -> None:
    """Unset fields get the source's defaults; set fields are copied, and notes name the ones left out."""
    plain = convert_trainingjob(job(kind, {"Worker": 1}))
    made = plain.manifest["spec"]["runPolicy"]
    assert made == {"cleanPodPolicy": "None", "backoffLimit": DEFAULT_RETRIES[kind]}
    assert not [note for note in plain.notes if "Policy" in note], "the manifest has no such field"
    policy = {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 9, "suspend": True}
    said = job(kind, {"Worker": 1}, runPolicy={**policy, "backoffLimit": 2, "schedulingPolicy": {"queue": "q"}})
    said["spec"][f"{SPECS[kind]}ReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    converted = convert_trainingjob(said)
    assert converted.manifest["spec"]["runPolicy"] == {**policy, "backoffLimit": 2}
    for expected in ("restartPolicy (Worker ExitCode) is left out", "runPolicy.schedulingPolicy is left out"):
        assert any(expected in note for note in converted.notes)


def test_without_restarts_there_are_none() -> None:
    """backoffLimit counts restarts, which restartPolicy Never forbids."""
    obj = job("JAXJob", {"Worker": 1}, runPolicy={"backoffLimit": 4})
    converted = convert_trainingjob(obj)
    assert converted.manifest["spec"]["runPolicy"]["backoffLimit"] == 0
    assert any("because of restartPolicy Never, the default: a failure" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("Master.template.spec.containers.0.command", None, "template.spec.containers[0].command: is missing"),
        ("Master.template.spec.containers", [], "Master.template.spec.containers: is empty"),
        ("Master.replicas", "many", "Master.replicas: is 'many', expected a whole number"),
        ("PS", {}, "spec.pytorchReplicaSpecs.PS: is no role of a PyTorchJob, expected Master, Worker"),
    ],
    ids=["command", "containers", "replicas", "role"],
)
def test_what_can_not_be_is_refused_by_field(path: str, value: object, expected: str) -> None:
    """Errors contain the source's paths."""
    obj = job("PyTorchJob", {"Master": 1, "Worker": 1})
    if path.endswith("command"):
        obj["spec"]["pytorchReplicaSpecs"].pop("Worker")
    *way, last = path.split(".")
    found: Any = obj["spec"]["pytorchReplicaSpecs"]
    for name in way:
        found = found[int(name) if name.isdecimal() else name]
    found[last] = value
    assert expected in refusal(obj)


def test_roles_that_differ() -> None:
    """Worker 0 has the Master's template and its label, and the others the Workers'; ranks have the same variables."""
    obj = job("PyTorchJob", {"Master": 1, "Worker": 2}, ["sh", "-c", 'env; echo "words=$*"', "sh"])
    for role, replica in obj["spec"]["pytorchReplicaSpecs"].items():
        [container] = replica["template"]["spec"]["containers"]
        env = [{"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        resources = {"limits": {"memory": "1Gi" if role == "Master" else "2Gi", "nvidia.com/gpu": 1}}
        container |= {"args": [role], "image": role.lower(), "env": env, "resources": resources}
        replica["template"]["spec"]["volumes"] = [{"name": role.lower(), "emptyDir": {}}]
    converted = convert_trainingjob(obj)
    parsed = parse_job(converted.manifest)
    for rank, role in enumerate(("Master", "Worker", "Worker")):
        template = parsed.spec.worker.template_of(rank)
        [container] = template["spec"]["containers"]
        found = found_by(container["command"], rank, 3)
        assert (found["words"], found["PET_NODE_RANK"], found["PET_NNODES"]) == (role, str(rank), "3")
        assert container["image"] == role.lower()
        assert container["resources"] == {"limits": {"memory": "1Gi" if role == "Master" else "2Gi"}}
        assert template["spec"]["volumes"] == [{"name": role.lower(), "emptyDir": {}}]
        assert template["metadata"]["labels"]["training.kubeflow.org/replica-type"] == role.lower()
    assert parsed.worker_devices == {"nvidia.com/gpu": 1}
    assert any("Master differs from Worker in spec.containers[0].args" in note for note in converted.notes)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_pods_have_the_sources_labels(kind: str) -> None:
    """GenLabels in the source's pkg/controller.v1/common/job_controller.go, and its replica-type and replica-index."""
    common = {"operator-name": f"{kind.lower()}-controller", "job-name": "job"}
    roles = ("Worker",) if kind == "JAXJob" else ("Chief" if kind == "TFJob" else "Master", "Worker")
    fields = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['training.kubeflow.org/{name}']"}}}
        for name in ("replica-index", "replica-type")
    ]
    for given in (roles, ("Worker",)):
        obj = job(kind, dict.fromkeys(given, 1))
        for replica in obj["spec"][f"{SPECS[kind]}ReplicaSpecs"].values():
            replica["template"]["spec"]["containers"][0]["env"] = fields
        converted = convert_trainingjob(obj)
        template = converted.manifest["spec"]["worker"]["template"]
        expected = common | ({"replica-type": "worker"} if len(given) == 1 else {})
        labels = {f"training.kubeflow.org/{name}": value for name, value in expected.items()}
        assert template["metadata"]["labels"] == labels
        [index, _] = template["spec"]["containers"][0]["env"]
        assert index["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['ringtrain.dev/worker-index']"
        missing = [note for note in converted.notes if "replica-type, which no pod has" in note]
        assert bool(missing) is (len(given) > 1)


def test_args_without_a_command() -> None:
    """Arguments become the command if possible, with a note; options belong to the image's entrypoint."""
    obj = job("TFJob", {"Worker": 1, "Evaluator": 1})
    path = "template.spec.containers[0]"
    containers = [replica["template"]["spec"]["containers"][0] for replica in obj["spec"]["tfReplicaSpecs"].values()]
    for container in containers:
        del container["command"]
        container["args"] = ["python", "train.py", "--x"]
    converted = convert_trainingjob(obj)
    for role in ("worker", "evaluator"):
        [container] = converted.manifest["spec"][role]["template"]["spec"]["containers"]
        assert (container["command"], container.get("args")) == (["python", "train.py", "--x"], None)
    for role in ("Worker", "Evaluator"):
        assert any(f"tfReplicaSpecs.{role}.{path}.args become the command" in note for note in converted.notes)
    for role, container in zip(("Worker", "Evaluator"), containers, strict=True):
        container["args"] = ["--backend", "gloo"]
        assert f"tfReplicaSpecs.{role}.{path}.command: is missing; the entrypoint of image x:1" in refusal(obj)
        container["args"] = ["python"]


def test_parameter_servers_are_refused() -> None:
    """The error describes a solution."""
    assert "use a MultiWorkerMirroredStrategy" in refusal(job("TFJob", {"PS": 1, "Worker": 1}))


def test_variables_that_only_the_source_knows_in_time() -> None:
    """A shell expands $(RANK) of a command, Kubernetes that of an env; names of the source's services resolve
    nowhere."""
    command = ["sh", "-c", "echo rank=$(RANK)", *"123456789", "$(HOME)"]
    obj = job("XGBoostJob", {"Master": 1, "Worker": 1}, command)
    converted = convert_trainingjob(obj)
    assert found_by(main_container(converted.manifest)["command"], 1, 2) == {"rank": "1"}
    assert any("$(RANK) in the command" in note for note in converted.notes)
    obj["spec"]["xgbReplicaSpecs"]["Worker"] |= {"replicas": 0}
    container = obj["spec"]["xgbReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    for field in ({"env": [{"name": "NODE", "value": "$(RANK)"}]}, {"command": ["./a", "$(DATA)/$(RANK)"]}):
        before = dict(container)
        container |= field
        assert "has $(RANK)" in refusal(obj)
        container.clear()
        container |= before
    command = ["python", "a.py", "tcp://job-master-0:23456"]
    converted = convert_trainingjob(job("PyTorchJob", {"Master": 1}, command))
    assert any("job-master-… in the command" in note for note in converted.notes)


def test_what_is_left_out_is_named() -> None:
    """Fields of other versions, too."""
    obj = job("TFJob", {"Worker": 1}, enableDynamicWorker=True, runPolicy={"fresh": 1}, Fresh=1)
    notes = convert_trainingjob(obj).notes
    for expected in ("spec.enableDynamicWorker", "spec.runPolicy.fresh", "spec.Fresh"):
        assert any(f"{expected} is left out" in note for note in notes)


def test_the_command(tmp_path: Path) -> None:
    """All four kinds in one file."""
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([job(kind, {"Worker": 2}) for kind in CONTAINERS]))
    result = CliRunner().invoke(main, ["convert", str(file)])
    assert result.exit_code == 0, result.output
    assert [one["kind"] for one in yaml.safe_load_all(result.stdout)] == ["DistributedTrainingJob"] * 4
