"""`dtj convert`: kubeflow's MPIJobs become valid jobs with the same behaviour; notes name the differences."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ringtrain_client.cli.main import main
from ringtrain_convert.mpijob import convert_mpijob
from ringtrain_operator.build.pods import build_launcher_pod, build_worker_pod
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job

MPIJOB = yaml.safe_load("""
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi, namespace: lab, labels: {team: a}, resourceVersion: "7"}
spec:
  slotsPerWorker: 2
  sshAuthMountPath: /home/mpiuser/.ssh
  runPolicy: {cleanPodPolicy: Running, ttlSecondsAfterFinished: 60, activeDeadlineSeconds: 900, suspend: true}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
            - {name: launcher, image: pi:1, command: [mpirun], args: [-n, "4", /home/mpiuser/pi]}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          nodeSelector: {zone: a}
          containers:
            - name: worker
              image: pi:1
              command: [/usr/sbin/sshd]
              args: [-De]
              resources: {limits: {cpu: 1, nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 2}}
""")


def changed(**spec: Any) -> dict[str, Any]:
    obj = copy.deepcopy(MPIJOB)
    obj["spec"].update(spec)
    return obj


def labels_of(role: str) -> dict[str, str]:
    """Labels of mpi-operator's pods: defaultLabels in its pkg/controller/mpi_job_controller.go."""
    labels = {"operator-name": "mpi-operator", "job-name": "pi", "job-role": role}
    return {f"training.kubeflow.org/{name}": value for name, value in labels.items()}


def launcher_of(obj: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = obj["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    return container


def test_a_job_keeps_its_meaning() -> None:
    """Field by field, as docs/migrate-from-mpijob.md has it."""
    made = convert_mpijob(MPIJOB).manifest
    assert made["metadata"] == {"name": "pi", "namespace": "lab", "labels": {"team": "a"}}
    spec = made["spec"]
    assert (spec["backend"], spec["slotsPerWorker"], spec["mpi"]) == ("mpi", 2, {"implementation": "OpenMPI"})
    assert (spec["worker"]["replicas"], spec["worker"]["devices"]) == (2, {"nvidia.com/gpu": 2})
    assert spec["worker"]["template"]["spec"] == {
        "nodeSelector": {"zone": "a"},
        "containers": [{"name": "worker", "image": "pi:1", "resources": {"limits": {"cpu": 1}}}],
    }
    assert spec["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "suspend": True,
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 900,
        "backoffLimit": 6,
    }


def test_a_field_that_is_null_is_one_that_is_not_set() -> None:
    """The default is MPIJob's, 6 failures, and not ours."""
    assert convert_mpijob(changed(runPolicy={"backoffLimit": None})).manifest["spec"]["runPolicy"] == {
        "cleanPodPolicy": "None",
        "backoffLimit": 6,
    }


def test_its_pods_run_agent_and_launcher() -> None:
    """The launcher's mpirun names the program; the workers have no command of their own."""
    job = parse_job(convert_mpijob(MPIJOB).manifest)
    launcher = build_launcher_pod(job, 1)["spec"]["containers"][0]
    assert launcher["command"] == ["ringtrain", "launcher", "--", "mpirun", "-n", "4", "/home/mpiuser/pi"]
    worker = build_worker_pod(job, 1, 0)["spec"]["containers"][0]
    assert worker["command"] == ["ringtrain", "agent"]
    assert worker["resources"]["limits"] == {"cpu": 1, "nvidia.com/gpu": "2"}


def test_what_is_not_the_same_is_said() -> None:
    notes = "\n".join(convert_mpijob(MPIJOB).notes)
    assert "spec.sshAuthMountPath is left out: there are no ssh keys to mount" in notes
    assert "the worker's command ['/usr/sbin/sshd', '-De'] is left out" in notes
    assert "spec.mpiReplicaSpecs.Worker.restartPolicy is left out" in notes
    assert "the image is not changed" in notes


def test_a_field_that_no_mpijob_has_is_said() -> None:
    """A note names an unknown field at any place: one with a spelling mistake, or one of another operator."""
    obj = changed(slotPerWorker=4, runPolicy={"ttl": 1})
    obj["spec"]["mpiReplicaSpecs"] |= {"Evaluator": {}}
    obj["spec"]["mpiReplicaSpecs"]["Worker"]["minReplicas"] = 1
    left_out = [note for note in convert_mpijob(obj).notes if "no field of an MPIJob" in note]
    assert left_out == [
        "spec.slotPerWorker is left out: it is no field of an MPIJob; did you mean slotsPerWorker?",
        "spec.runPolicy.ttl is left out: it is no field of an MPIJob",
        "spec.mpiReplicaSpecs.Evaluator is left out: it is no field of an MPIJob",
        "spec.mpiReplicaSpecs.Worker.minReplicas is left out: it is no field of an MPIJob; did you mean replicas?",
    ]


def test_a_job_without_workers_is_refused() -> None:
    """Without workers, but with ranks on the launcher, the source runs a job of one."""
    obj = changed(runLauncherAsWorker=True)
    obj["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 0
    with pytest.raises(Invalid, match=r"worker\.replicas: is 0"):
        convert_mpijob(obj)


def test_a_number_of_ranks_that_does_not_fit_is_said() -> None:
    notes = convert_mpijob(changed(slotsPerWorker=4)).notes
    assert any("starts 4 ranks (-n), the job has 8" in note for note in notes)
    assert not any("ranks" in note for note in convert_mpijob(MPIJOB).notes)


def test_a_command_of_many_options_is_searched_without_backtracking() -> None:
    """A search whose time doubled with each option would never end here."""
    obj = changed()
    launcher_of(obj)["command"] = ["mpirun", *(f"--flag-{number}" for number in range(200)), "python", "train.py"]
    assert not any("ranks" in note for note in convert_mpijob(obj).notes)


def test_an_entrypoint_in_the_arguments_is_the_command() -> None:
    """`args: [mpirun, …]` without a command relies on an entrypoint that only executes its arguments."""
    obj = copy.deepcopy(MPIJOB)
    launcher_of(obj).update(command=None, args=["mpirun", "./pi"])
    made = convert_mpijob(obj).manifest["spec"]["launcher"]["template"]["spec"]["containers"][0]
    assert (made["command"], "args" in made) == (["mpirun", "./pi"], False)


def test_the_launcher_as_worker_and_mpich() -> None:
    spec = convert_mpijob(changed(mpiImplementation="MPICH", runLauncherAsWorker=True)).manifest["spec"]
    assert spec["mpi"] == {"implementation": "MPICH", "runLauncherAsWorker": True}


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        pytest.param(
            changed(mpiImplementation="LAM"),
            "spec.mpiImplementation: is 'LAM', allowed: OpenMPI, MPICH, Intel",
            id="another-mpi",
        ),
        pytest.param(changed(mpiReplicaSpecs={}), "spec.mpiReplicaSpecs.Worker: is missing", id="no-workers"),
    ],
)
def test_what_cannot_be_converted_is_refused(obj: dict[str, Any], message: str) -> None:
    """The error contains the MPIJob's path, and a solution."""
    with pytest.raises(Invalid, match=message):
        convert_mpijob(obj)


def test_the_command_writes_jobs_and_keeps_the_rest(tmp_path: Path) -> None:
    """A file may contain objects other than the MPIJob; notes are written to stderr, YAML to stdout."""
    source = tmp_path / "mpijob.yaml"
    source.write_text(yaml.safe_dump_all([{"apiVersion": "v1", "kind": "ConfigMap"}, MPIJOB]))
    result = CliRunner().invoke(main, ["convert", str(source)])
    assert result.exit_code == 0
    kinds = [document["kind"] for document in yaml.safe_load_all(result.stdout)]
    assert kinds == ["ConfigMap", "DistributedTrainingJob"]
    assert "pi: spec.sshAuthMountPath is left out" in result.stderr


def test_a_file_without_an_mpijob_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "other.yaml"
    source.write_text("kind: Pod\n")
    result = CliRunner().invoke(main, ["convert", str(source)])
    assert result.exit_code == 1
    assert "has Pod (without apiVersion); expected an MPIJob" in result.output


@pytest.mark.parametrize(
    ("role", "field", "value", "problem"),
    [
        ("", "slotsPerWorker", "two", "spec.slotsPerWorker: is 'two', expected a whole number"),
        ("Worker", "replicas", [2], "spec.mpiReplicaSpecs.Worker.replicas: is [2], expected a whole number"),
        ("Launcher", "args", ["-n", 4, "pi"], "containers[0].args[1]: must be a string, is 4"),
        ("Launcher", "command", "mpirun", "containers[0].command: must be a list, is 'mpirun'"),
        ("Worker", "resources", {"limits": {"nvidia.com/gpu": "100m"}}, "resources.limits[nvidia.com/gpu]: is '100m'"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(role: str, field: str, value: object, problem: str) -> None:
    """The field, what it is, and what is expected."""
    obj = changed()
    replica = obj["spec"]["mpiReplicaSpecs"].get(role, obj["spec"])
    (replica if field in ("slotsPerWorker", "replicas") else replica["template"]["spec"]["containers"][0])[field] = (
        value
    )
    with pytest.raises(Invalid) as refused:
        convert_mpijob(obj)
    assert problem in str(refused.value)


def test_a_queue_needs_no_suspension() -> None:
    """Kueue's users, or its webhook, set suspend: true, and Kueue resets it; here no component would."""
    queued = {"kueue.x-k8s.io/queue-name": "gpu"}
    for labels, suspended in ((queued, False), ({}, True)):
        obj = changed(runPolicy={"suspend": True})
        obj["metadata"]["labels"] = labels
        converted = convert_mpijob(obj)
        assert converted.manifest["spec"]["runPolicy"].get("suspend", False) is suspended
        assert any("suspend: true is left out" in note for note in converted.notes) is not suspended


def test_marks_of_other_tools_are_left_out() -> None:
    """Argo, Helm, Flux and kubectl would take the new job for the old one; what people wrote stays."""
    obj = changed()
    mine = {"team": "a", "kueue.x-k8s.io/queue-name": "gpu"}
    theirs = {"app.kubernetes.io/instance": "x", "argocd.argoproj.io/instance": "x"}
    applied, tracked = "kubectl.kubernetes.io/last-applied-configuration", "argocd.argoproj.io/tracking-id"
    obj["metadata"]["labels"] = mine | theirs
    wish = {"argocd.argoproj.io/sync-options": "Prune=false"}
    obj["metadata"]["annotations"] = {applied: "{}", tracked: "x", **wish}
    pod = {"labels": {"app.kubernetes.io/name": "pi", "app": "pi"}, "annotations": {"inject": "false"}}
    obj["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"] = pod
    converted = convert_mpijob(obj)
    assert converted.manifest["metadata"]["labels"] == mine
    assert converted.manifest["metadata"]["annotations"] == wish
    template = converted.manifest["spec"]["worker"]["template"]
    assert template["metadata"] == {**pod, "labels": {"app": "pi", **labels_of("worker")}}
    for name in (*theirs, applied, tracked, "app.kubernetes.io/name"):
        assert any(f"[{name}] is left out" in note for note in converted.notes)


def test_pods_have_the_sources_labels() -> None:
    """Selectors of mpi-operator's pods select ours; an index that a worker reads is ours."""
    obj = changed()
    index = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    worker = obj["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker["env"] = [{"name": "INDEX", "valueFrom": index}]
    made = convert_mpijob(obj).manifest["spec"]
    for role in ("worker", "launcher"):
        assert made[role]["template"]["metadata"]["labels"] == labels_of(role)
    [variable] = made["worker"]["template"]["spec"]["containers"][0]["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['ringtrain.dev/worker-index']"


@pytest.mark.parametrize(("devices", "workers"), [({"nvidia.com/gpu": 2}, 3), ({}, 2)], ids=["devices", "none"])
def test_a_launcher_that_is_a_worker_keeps_its_devices(devices: dict[str, int], workers: int) -> None:
    """The launcher's ranks become those of an additional worker, because a launcher has no devices here. The world has
    the same size."""
    obj = changed(runLauncherAsWorker=True)
    launcher_of(obj).update(args=["-n", "6", "pi"], resources={"limits": devices})
    converted = convert_mpijob(obj)
    spec = converted.manifest["spec"]
    assert spec["worker"]["replicas"] == workers
    assert spec["mpi"].get("runLauncherAsWorker", False) is not bool(devices)
    assert any("runLauncherAsWorker is left out" in note for note in converted.notes) is bool(devices)
    assert not any("ranks (-n)" in note for note in converted.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mpirun -hostfile /etc/mpi/hostfile pi", ""),
        ("H=$(sed 's/ .*//' /etc/mpi/hostfile); for h in $H; do ssh $h nvidia-smi; done; mpirun pi", ""),
        ("mpirun -mca plm_rsh_agent /etc/mpi/kubexec.sh pi", "plm_rsh_agent: the agents start mpirun's daemons"),
        ("/usr/bin/ssh $(head -1 /etc/mpi/hostfile) true; mpirun pi", "/usr/bin/ssh: there is no sshd"),
        ("mpirun -H pi-worker-0:2,pi-worker-1:2 pi", "-H pi-worker-0:2,pi-worker-1:2: workers have other names"),
        ("mpirun --host pi-worker-0.pi.lab.svc pi", "--host pi-worker-0.pi.lab.svc: workers have other names"),
        ("mpirun -H a pi; curl -H pi-worker:1", ""),
        ("horovodrun -np 4 python train.py", "horovodrun: write mpirun"),
        ("mpirun --host-discovery-script /etc/mpi/discover_hosts.sh pi", "only /etc/mpi/hostfile is made"),
    ],
)
def test_what_a_command_names(text: str, said: str) -> None:
    """The hostfile is at the same path, and ssh is found by name; a note names missing files."""
    obj = changed()
    launcher_of(obj).update(command=["bash", "-c", text], args=[])
    notes = [note for note in convert_mpijob(obj).notes if "the launcher's command has" in note]
    assert bool(notes) is bool(said)
    assert said in "".join(notes)


def test_the_launcher_has_a_place_for_the_hostfile() -> None:
    """/etc/mpi is mpi-operator's configMountPath; a template's own mount there stays."""
    manifest = convert_mpijob(MPIJOB).manifest
    main = build_launcher_pod(parse_job(manifest), 1)["spec"]["containers"][0]
    assert {"name": "ringtrain-mpi", "mountPath": "/etc/mpi"} in main["volumeMounts"]
    assert {"name": "RINGTRAIN_MPI_HOSTFILE", "value": "/etc/mpi/hostfile"} in main["env"]
    pod = manifest["spec"]["launcher"]["template"]["spec"]
    pod["volumes"] = [{"name": "mine", "emptyDir": {}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "mine", "mountPath": "/etc/mpi/"}]
    main = build_launcher_pod(parse_job(manifest), 1)["spec"]["containers"][0]
    assert not [mount for mount in main["volumeMounts"] if mount["name"] == "ringtrain-mpi"]
    assert "RINGTRAIN_MPI_HOSTFILE" not in {variable["name"] for variable in main["env"]}
