"""Pods that the builders make from a user's template."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import job

from ringtrain_operator import contract
from ringtrain_operator.build import (
    LAUNCHER_RESOURCES,
    SECURITY_FIELDS,
    BuildSettings,
    PodIncarnation,
    build_launcher_pod,
    build_worker_pod,
    secured_pod,
)
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.template import containers_of

Json = dict[str, Any]


def parsed(container: Json | None = None, pod: Json | None = None, **spec: Any) -> Job:
    """A job whose worker has these extra fields in its container and its pod."""
    manifest = job(**spec)
    manifest["metadata"]["uid"] = "0a1b2c3d-0000"
    worker = manifest["spec"]["worker"]
    worker["template"]["spec"]["containers"][0].update(container or {})
    worker["template"]["spec"].update(pod or {})
    return parse_job(manifest, templates=False)


def main(pod: Json) -> Json:
    """The pod's first container."""
    return pod["spec"]["containers"][0]


def env(pod: Json) -> dict[str, Any]:
    """Its plain environment."""
    return {variable["name"]: variable.get("value") for variable in main(pod)["env"]}


def mounts(pod: Json) -> dict[str, str]:
    """Volume name by path."""
    return {mount["mountPath"]: mount["name"] for mount in main(pod)["volumeMounts"]}


def test_the_command_is_wrapped() -> None:
    """Command and args become the agent's command; $(NAME) is left to the kubelet."""
    pod = build_worker_pod(parsed({"command": ["python"], "args": ["t.py", "$(A)"]}), 1, 0)
    assert main(pod)["command"] == ["ringtrain", "agent", "--", "python", "t.py", "$(A)"]
    assert "args" not in main(pod)


@pytest.mark.parametrize(
    ("written", "told"), [({}, "30"), ({"terminationGracePeriodSeconds": 300}, "300")], ids=["default", "own"]
)
def test_the_grace_period_of_an_elastic_jobs_worker(written: dict[str, Any], told: str) -> None:
    """Agent and launcher know how long ranks may take to hand over; in another job they have no use for that."""
    given_job = parsed(pod=written, elastic={"maxReplicas": 4})
    for pod in (build_worker_pod(given_job, 1, 0), build_launcher_pod(given_job, 1)):
        assert env(pod)[contract.ENV_GRACE_PERIOD] == told
    assert contract.ENV_GRACE_PERIOD not in env(build_worker_pod(parsed(pod=written), 1, 0))


def test_the_launcher_has_the_grace_period_of_its_workers() -> None:
    """It takes in what ranks write while they save; its own template goes before that."""
    given_job = parsed(pod={"terminationGracePeriodSeconds": 300})
    assert build_launcher_pod(given_job, 1)["spec"]["terminationGracePeriodSeconds"] == 300
    own = {"template": {"spec": {"terminationGracePeriodSeconds": 20}}}
    given_job = parsed(pod={"terminationGracePeriodSeconds": 300}, launcher=own)
    assert build_launcher_pod(given_job, 1)["spec"]["terminationGracePeriodSeconds"] == 20


def test_bounds_of_an_elastic_job() -> None:
    """Both sides know the most workers there may be and what follows a loss, the launcher the bounds in ranks."""
    elastic = {"minReplicas": 2, "maxReplicas": 12, "onLoss": "Shrink", "joinDelaySeconds": 5}
    given_job = parsed(workers=8, slotsPerWorker=2, elastic=elastic)
    launcher, worker = env(build_launcher_pod(given_job, 1)), env(build_worker_pod(given_job, 1, 11))
    for found in (launcher, worker):
        assert (found[contract.ENV_ELASTIC], found[contract.ENV_NUM_WORKERS]) == ("Shrink", "12")
    assert {name: value for name, value in launcher.items() if name.startswith(f"{contract.ENV_ELASTIC}_")} == {
        contract.ENV_ELASTIC_MIN_RANKS: "4",
        contract.ENV_ELASTIC_MAX_RANKS: "24",
        contract.ENV_ELASTIC_START_RANKS: "16",
        contract.ENV_ELASTIC_REPLACE_TIMEOUT: "120",
        contract.ENV_ELASTIC_JOIN_DELAY: "5",
        contract.ENV_ELASTIC_FORMATION_LIMIT: "100",
        contract.ENV_ELASTIC_FORMATION: "0",
    }


def test_nodes_are_avoided_beside_the_templates_affinity() -> None:
    """A wish among the user's own; the template is not changed."""
    theirs = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    wishes = {"preferredDuringSchedulingIgnoredDuringExecution": [theirs]}
    given_job = parsed(pod={"affinity": {"nodeAffinity": wishes, "podAntiAffinity": {}}}, elastic={"maxReplicas": 4})
    pod = build_worker_pod(given_job, 1, 0, incarnation=PodIncarnation(3, ("bad", "worse")))
    assert pod["metadata"]["labels"][contract.LABEL_INCARNATION] == "3"
    found = pod["spec"]["affinity"]
    mine, added = found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (mine, found["podAntiAffinity"]) == (theirs, {})
    assert [field["values"] for field in added["preference"]["matchFields"]] == [["bad"], ["worse"]]
    assert wishes["preferredDuringSchedulingIgnoredDuringExecution"] == [theirs]


def test_a_killed_launcher_of_an_elastic_job_is_started_again() -> None:
    """By a rule of its container, for exit codes of a process that was killed; no other container has a rule."""
    launcher = main(build_launcher_pod(parsed(elastic={"maxReplicas": 4}), 1))
    assert launcher["restartPolicy"] == "Never"
    (rule,) = launcher["restartPolicyRules"]
    assert (rule["action"], set(rule["exitCodes"]["values"])) == ("Restart", {134, 137, 139})
    assert "restartPolicyRules" not in main(build_launcher_pod(parsed(), 1))
    assert "restartPolicyRules" not in main(build_worker_pod(parsed(elastic={"maxReplicas": 4}), 1, 0))


def test_a_job_that_is_not_elastic_has_no_bounds() -> None:
    """Its launcher and its agents read what they always have."""
    for pod in (build_launcher_pod(parsed(), 1), build_worker_pod(parsed(), 1, 0)):
        assert [name for name in env(pod) if name.startswith(contract.ENV_ELASTIC)] == []


def test_the_template_passes_through() -> None:
    """Fields that nobody here has heard of are in the pod; the spec itself is not changed."""
    extra = {"futureField": {"a": [1, {"b": None}]}, "nodeSelector": {"x": "y"}, "priorityClassName": "high"}
    given_job = parsed({"resources": {"requests": {"cpu": "4"}}, "tty": False}, extra)
    before = copy.deepcopy(given_job.spec.worker.template)
    pod = build_worker_pod(given_job, 1, 0)
    assert {key: pod["spec"][key] for key in extra} == extra
    assert main(pod)["resources"] == {"requests": {"cpu": "4"}}
    assert given_job.spec.worker.template == before


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "amd.com/gpu", "graphcore.ai/ipu", "google.com/tpu", "habana.ai/gaudi"]
)
def test_devices(name: str) -> None:
    """Any extended resource is limit and request of the training container, and of nothing else."""
    manifest = job(worker=None)
    manifest["spec"]["worker"] = job()["spec"]["worker"] | {"devices": {name: 2}}
    given_job = parse_job(manifest)
    worker, launcher = build_worker_pod(given_job, 1, 0), build_launcher_pod(given_job, 1)
    assert main(worker)["resources"] == {"limits": {name: "2"}, "requests": {name: "2"}}
    assert env(worker)[contract.ENV_SLOTS_PER_WORKER] == "2"
    assert name not in str(launcher)
    assert env(launcher)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_identity() -> None:
    """Name, labels, owner, host name: what the Service, the operator and the garbage collector go by."""
    pod = build_worker_pod(parsed(), 3, 1)
    metadata = pod["metadata"]
    assert metadata["name"] == pod["spec"]["hostname"] == "digits-worker-1"
    assert pod["spec"]["subdomain"] == "digits"
    assert metadata["labels"] == {
        "app.kubernetes.io/managed-by": "ringtrain",
        "app.kubernetes.io/name": "digits",
        "ringtrain.dev/job-name": "digits",
        "ringtrain.dev/role": "worker",
        "ringtrain.dev/attempt": "3",
        "ringtrain.dev/worker-index": "1",
    }
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DistributedTrainingJob", "0a1b2c3d-0000", True)


def test_volumes() -> None:
    """Secret and shared memory on workers, secret and logs on the launcher, checkpoints on both."""
    claim = {"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "/data"}
    given_job = parsed(checkpoint=claim, logs={"persistentVolumeClaim": {"claimName": "l"}})
    worker, launcher = build_worker_pod(given_job, 1, 0), build_launcher_pod(given_job, 1)
    assert set(mounts(worker)) == {"/etc/ringtrain/secret", "/data", "/dev/shm"}
    assert set(mounts(launcher)) == {"/etc/ringtrain/secret", "/data", "/var/log/ringtrain"}
    assert env(worker)[contract.ENV_CHECKPOINT_DIR] == "/data/digits-0a1b2c3d-0000"
    assert contract.ENV_RESTORE_FROM not in env(worker)
    sources = {volume["name"]: volume for volume in worker["spec"]["volumes"]}
    assert sources["ringtrain-shm"]["emptyDir"] == {"medium": "Memory"}
    keys = {item["key"] for item in sources["ringtrain-secret"]["secret"]["items"]}
    assert keys == {"ca.crt", "worker.crt", "worker.key", "token"}


def test_a_job_begins_with_anothers_checkpoint_only_when_it_says_so() -> None:
    """spec.checkpoint.restoreFrom reaches the workers; the job's own folder has its uid, so that it is new."""
    claim = {"persistentVolumeClaim": {"claimName": "c"}, "restoreFrom": "older"}
    found = env(build_worker_pod(parsed(checkpoint=claim), 1, 0))
    assert found[contract.ENV_RESTORE_FROM] == "older"
    assert found[contract.ENV_CHECKPOINT_DIR] == "/checkpoints/digits-0a1b2c3d-0000"


def test_a_users_own_shared_memory_is_kept() -> None:
    """A template that mounts /dev/shm keeps its volume."""
    volume = {"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    pod = build_worker_pod(
        parsed({"volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}]}, {"volumes": [volume]}), 1, 0
    )
    assert [v["name"] for v in pod["spec"]["volumes"]] == ["mine", "ringtrain-secret"]


def test_no_checkpoint_no_variable() -> None:
    """Without spec.checkpoint nothing says where checkpoints are."""
    assert contract.ENV_CHECKPOINT_DIR not in env(build_worker_pod(parsed(), 1, 0))


def test_an_image_may_do_what_it_may_elsewhere() -> None:
    """No container loses its user, capabilities or setuid programs; asked for, every one meets the restricted Pod
    Security Standard."""
    side = {"initContainers": [{"name": "init", "image": "i"}]}
    launcher = build_launcher_pod(parsed(), 1)
    assert main(launcher)["securityContext"].pop("readOnlyRootFilesystem")  # more than the standard asks for
    for pod in (build_worker_pod(parsed(pod=side), 1, 0), launcher):
        assert pod["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        assert not any(container.get("securityContext") for container in containers_of(pod))
        restricted = secured_pod(pod, SECURITY_FIELDS)
        assert restricted["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in containers_of(restricted):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_only_our_own_program_has_a_read_only_root() -> None:
    """The launcher writes to volumes only; a worker, or a launcher with a user's command, may write elsewhere."""
    command = {"template": {"spec": {"containers": [{"command": ["mpirun", "train"]}]}}}
    writable = {"template": {"spec": {"containers": [{"securityContext": {"readOnlyRootFilesystem": False}}]}}}

    def read_only(pod: Json) -> bool | None:
        return main(pod).get("securityContext", {}).get("readOnlyRootFilesystem")

    assert read_only(build_launcher_pod(parsed(), 1)) is True
    assert read_only(build_worker_pod(parsed(), 1, 0)) is None
    assert read_only(build_launcher_pod(parsed(backend="mpi", launcher=command), 1)) is None
    assert read_only(build_launcher_pod(parsed(launcher=writable), 1)) is False


def test_a_templates_own_security_is_kept() -> None:
    """The template's security settings stay, and no field is added that the API would refuse next to them."""
    own = {"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}}
    pod = build_worker_pod(parsed({"securityContext": own}, {"securityContext": {"runAsUser": 0}}), 1, 0)
    assert main(pod)["securityContext"] == main(secured_pod(pod, SECURITY_FIELDS))["securityContext"] == own
    assert pod["spec"]["securityContext"]["runAsUser"] == 0


@pytest.mark.parametrize("where", ["pod", "container"])
def test_a_template_that_asks_for_root_gets_it(where: str) -> None:
    """The kubelet refuses runAsUser: 0 under runAsNonRoot: true."""
    root = {"securityContext": {"runAsUser": 0}}
    pod = build_worker_pod(parsed(root, None) if where == "container" else parsed(None, root), 1, 0)
    of_pod, of_main = pod["spec"]["securityContext"], main(pod).get("securityContext", {})
    assert "runAsNonRoot" not in {**of_pod, **of_main}
    assert where == "container" or secured_pod(pod, ["runAsNonRoot"]) == pod
    assert of_main.get("runAsUser", of_pod.get("runAsUser")) == 0


def test_a_templates_own_refusal_of_root_stays() -> None:
    """runAsNonRoot: true of the template's pod is no default of ours."""
    own = {"securityContext": {"runAsNonRoot": True}}
    pod = build_worker_pod(parsed({"securityContext": {"runAsUser": 0}}, own), 1, 0)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "runAsNonRoot" not in main(secured_pod(pod, SECURITY_FIELDS))["securityContext"]


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize("field", ["runAsUser", "runAsGroup", "fsGroup"])
def test_a_template_that_names_a_user_or_group_gets_no_other_group(field: str) -> None:
    """Else a start changes owner and modes of the files that this user has."""
    own = {"securityContext": {field: 1000}}
    for given_job in (parsed(pod=own, checkpoint=CLAIM), parsed(own, checkpoint=CLAIM)):
        context = build_worker_pod(given_job, 1, 0)["spec"]["securityContext"]
        assert context.get("fsGroup") in (None, 1000)
        assert "fsGroupChangePolicy" not in context


def test_only_a_claim_of_ours_gets_our_group() -> None:
    """It is changed once, not at every start; a claim of the template, and the Secret, are left as they are."""
    theirs = {"volumes": [{"name": "data", **CLAIM}]}
    for built in (build_worker_pod(parsed(pod=theirs), 1, 0), build_launcher_pod(parsed(), 1)):
        assert not {"fsGroup", "fsGroupChangePolicy"} & set(built["spec"]["securityContext"])
        secret = next(v for v in built["spec"]["volumes"] if v["name"] == "ringtrain-secret")["secret"]
        assert secret["defaultMode"] & 0o004  # whoever the container runs as
    for built in (
        build_worker_pod(parsed(checkpoint=CLAIM), 1, 0),
        build_launcher_pod(parsed(logs=CLAIM), 1),
    ):
        context = built["spec"]["securityContext"]
        assert (context["fsGroup"], context["fsGroupChangePolicy"]) == (65532, "OnRootMismatch")


def test_the_launcher_takes_after_the_worker() -> None:
    """Without a template the launcher has the worker's image and pull secrets, and none of its placement."""
    pod = build_launcher_pod(parsed(pod={"imagePullSecrets": [{"name": "s"}], "nodeSelector": {"gpu": "yes"}}), 1)
    assert main(pod)["image"] == "train:1"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "s"}]
    assert "nodeSelector" not in pod["spec"]
    assert main(pod)["command"] == ["ringtrain", "launcher"]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def required(*terms: list[Json]) -> Json:
    """Affinity to nodes of which one of `terms` holds."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}}


def said(key: str, *values: str) -> Json:
    """A label of a node has one of `values`."""
    return {"key": key, "operator": "In", "values": list(values)}


ARM = {"kubernetes.io/arch": "arm64"}
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}


def test_the_workers_image_runs_on_nodes_that_can_run_it() -> None:
    """A launcher with that image goes where the worker's template says the architecture is; of the rest of its
    places it has nothing, and one with an image of its own has nothing at all."""
    place = {"nodeSelector": {**ARM, "gpu": "yes"}, "tolerations": [TAINT]}
    spec = build_launcher_pod(parsed(pod=place), 1)["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == (ARM, [TAINT])
    own = {"nodeSelector": {"kubernetes.io/arch": "amd64"}}
    spec = build_launcher_pod(parsed(pod=place, launcher={"template": {"spec": own}}), 1)["spec"]
    assert spec["nodeSelector"] == own["nodeSelector"]
    another = {"template": {"spec": {"containers": [{"image": "another:1"}]}}}
    spec = build_launcher_pod(parsed(pod=place, launcher=another), 1)["spec"]
    assert not {"nodeSelector", "tolerations"} & set(spec)


def test_an_architecture_that_affinity_requires_binds_the_launcher() -> None:
    """Each of its own terms holds with one of the worker's; a worker that may run anywhere binds nothing."""
    arm, amd, zone = said("kubernetes.io/arch", "arm64"), said("kubernetes.io/arch", "amd64"), said("zone", "a")
    pod = {"affinity": required([zone, arm], [amd])}
    assert build_launcher_pod(parsed(pod=pod), 1)["spec"]["affinity"] == required([arm], [amd])
    own = {"template": {"spec": {"affinity": required([zone])}}}
    spec = build_launcher_pod(parsed(pod=pod, launcher=own), 1)["spec"]
    assert spec["affinity"] == required([zone, arm], [zone, amd])
    anywhere = parsed(pod={"affinity": required([arm], [zone])})
    assert "affinity" not in build_launcher_pod(anywhere, 1)["spec"]


def test_the_workers_image_runs_in_the_launcher_as_in_the_worker() -> None:
    """It takes the user of the worker's container, none of its rights, and keeps what its own template names."""
    own = {"securityContext": {"runAsUser": 1000, "runAsGroup": 100, "capabilities": {"add": ["IPC_LOCK"]}}}
    context = main(build_launcher_pod(parsed(own), 1))["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (1000, 100)
    assert "capabilities" not in context
    for template in (
        {"spec": {"securityContext": {"runAsUser": 7}}},
        {"spec": {"containers": [{"securityContext": {"runAsUser": 7}}]}},
    ):
        pod = build_launcher_pod(parsed(own, launcher={"template": template}), 1)
        assert main(pod)["securityContext"].get("runAsUser", pod["spec"]["securityContext"].get("runAsUser")) == 7
    another = {"template": {"spec": {"containers": [{"image": "another:1"}]}}}
    assert "runAsUser" not in main(build_launcher_pod(parsed(own, launcher=another), 1))["securityContext"]


def test_a_launcher_with_pull_secrets_of_its_own_may_pull_the_workers_image() -> None:
    """Its own come first, the worker's after them."""
    template = {"spec": {"imagePullSecrets": [{"name": "mine"}, {"name": "s"}]}}
    worker = {"imagePullSecrets": [{"name": "s"}, {"name": "t"}]}
    pod = build_launcher_pod(parsed(pod=worker, launcher={"template": template}), 1)
    assert [one["name"] for one in pod["spec"]["imagePullSecrets"]] == ["mine", "s", "t"]


def test_the_launcher_of_an_mpi_job_runs_the_program() -> None:
    """Under mpi the launcher starts mpirun with the worker's command, or its own command as it is."""
    worker = {"command": ["./pi"], "args": ["100"]}
    assert main(build_launcher_pod(parsed(worker, backend="mpi"), 1))["command"] == [
        *("ringtrain", "launcher", "--", "mpirun", "./pi", "100")
    ]
    own = {"template": {"spec": {"containers": [{"command": ["mpirun", "./pi"]}]}}}
    launcher = build_launcher_pod(parsed(worker, backend="mpi", launcher=own), 1)
    assert main(launcher)["command"] == ["ringtrain", "launcher", "--", "mpirun", "./pi"]


def test_the_users_environment_comes_after_ours() -> None:
    """So that it can refer to it."""
    variables = main(build_worker_pod(parsed({"env": [{"name": "X", "value": "$(RINGTRAIN_ATTEMPT)"}]}), 1, 0))["env"]
    names = [variable["name"] for variable in variables]
    assert names.index("RINGTRAIN_ATTEMPT") < names.index("X")
    assert len(names) == len(set(names))


keys = st.sampled_from(
    ["name", "capabilities", "add", "privileged", "limits", "requests", "mountPath", "nvidia.com/gpu", "labels"]
)
# Values of every shape where a pod's template has fields that we read.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
container_fields = st.sampled_from(
    ["command", "args", "env", "ports", "volumeMounts", "resources", "securityContext", "name", "image"]
)
pod_fields = st.sampled_from(
    ["volumes", "securityContext", "imagePullSecrets", "initContainers", "restartPolicy", "serviceAccountName"]
)
metadata = st.dictionaries(st.sampled_from(["labels", "annotations", "name"]), json_values, max_size=2)


@settings(max_examples=300)
@given(
    st.dictionaries(container_fields, json_values, max_size=3),
    st.dictionaries(pod_fields, json_values, max_size=2),
    metadata,
    st.booleans(),
)
def test_any_template_is_built_or_refused(container: Json, pod: Json, meta: Json, on_launcher: bool) -> None:
    """Any template yields a pod or raises Invalid, never another exception."""
    template = {
        "spec": {"containers": [{"name": "c", "image": "i", "command": ["x"], **container}], **pod},
        "metadata": meta,
    }
    manifest = job()
    if on_launcher:
        manifest["spec"]["launcher"] = {"template": template}
    else:
        manifest["spec"]["worker"]["template"] = template
    try:
        given_job = parse_job(manifest)
    except Invalid:
        return
    assert build_worker_pod(given_job, 1, 0)["spec"]["restartPolicy"] == "Never"
    assert build_launcher_pod(given_job, 1)["spec"]["restartPolicy"] == "Never"


def test_a_launchers_resources() -> None:
    """The installation's unless its template has some; those of a worker, devices aside, where it runs ranks."""
    given = {"limits": {"memory": "3Gi"}}
    assert main(build_launcher_pod(parsed(), 1))["resources"] == LAUNCHER_RESOURCES
    settings = BuildSettings(launcher_resources=given)
    assert main(build_launcher_pod(parsed(), 1, settings=settings))["resources"] == given
    own = {"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "9"}}}]}}}
    assert main(build_launcher_pod(parsed(launcher=own), 1))["resources"] == {"requests": {"cpu": "9"}}
    worker = {"resources": {"limits": {"cpu": "4", "nvidia.com/gpu": 1}}}
    with_ranks = parsed(worker, backend="mpi", mpi={"runLauncherAsWorker": True})
    assert main(build_launcher_pod(with_ranks, 1))["resources"] == {"limits": {"cpu": "4"}}


def test_a_launcher_is_as_urgent_as_its_workers() -> None:
    """Else it is what is preempted first, and the gang with it."""
    assert build_launcher_pod(parsed(pod={"priorityClassName": "high"}), 1)["spec"]["priorityClassName"] == "high"
    own = {"template": {"spec": {"priorityClassName": "low"}}}
    launcher = build_launcher_pod(parsed(pod={"priorityClassName": "high"}, launcher=own), 1)
    assert launcher["spec"]["priorityClassName"] == "low"


@pytest.mark.parametrize(
    ("pod", "policy"),
    [
        pytest.param({}, None, id="own-network"),
        pytest.param({"hostNetwork": True}, "ClusterFirstWithHostNet", id="host-network"),
        pytest.param(
            {"hostNetwork": True, "dnsPolicy": "ClusterFirst"},
            "ClusterFirstWithHostNet",
            id="default-in-words",
        ),
        pytest.param({"hostNetwork": True, "dnsPolicy": "None"}, "None", id="own-resolver"),
    ],
)
def test_a_pod_in_the_hosts_network_resolves_services(pod: Json, policy: str | None) -> None:
    """Kubernetes' default policy asks the node's servers there, which do not know the launcher."""
    made = build_worker_pod(parsed(pod=pod), 1, 0)
    assert made["spec"].get("dnsPolicy") == policy


PORTS = {f"RINGTRAIN_{name}" for name in ("AGENT_PORT", "RING_PORT_BASE", "MASTER_PORT", "TF_PORT_BASE")}


@pytest.mark.parametrize(
    ("pod", "slots", "any_of", "opens"),
    [
        pytest.param({}, 100, set(), True, id="own-network"),
        pytest.param({}, 101, PORTS - {"RINGTRAIN_AGENT_PORT", "RINGTRAIN_MASTER_PORT"}, True, id="many-slots"),
        pytest.param({"hostNetwork": True}, 1, PORTS, False, id="host-network"),
    ],
)
def test_ports_of_a_worker(pod: Json, slots: int, any_of: set[str], opens: bool) -> None:
    """Workers of one node share its ports under hostNetwork: there each takes what is free, and reserves none."""
    worker = build_worker_pod(parsed(pod=pod, slotsPerWorker=slots), 1, 0)
    assert {name for name in PORTS if env(worker)[name] == "0"} == any_of
    assert bool(worker["spec"]["containers"][0].get("ports")) == opens


def test_ports_of_a_launcher_in_its_nodes_network() -> None:
    """They are the job's own, and the same in all that names them: launchers of two jobs may share a node."""
    own = {"template": {"spec": {"hostNetwork": True}}}
    job = parsed(launcher=own)
    launcher, worker = build_launcher_pod(job, 1), build_worker_pod(job, 1, 0)
    declared = {port["name"]: port["containerPort"] for port in main(launcher)["ports"]}
    assert {str(port) for port in declared.values()} == {
        env(launcher)[f"RINGTRAIN_{name}_PORT"] for name in ("LAUNCHER", "STATUS")
    }
    assert env(worker)["RINGTRAIN_LAUNCHER_ADDRESS"].endswith(f":{declared['rt-control']}")
    assert main(launcher)["livenessProbe"]["httpGet"]["port"] == declared["rt-status"]
    assert not {7350, 7351} & set(declared.values())
    again = {port["name"]: port["containerPort"] for port in main(build_launcher_pod(job, 2))["ports"]}
    assert again == declared


def test_the_longest_names_resolve() -> None:
    """The launcher's address stays within DNS's 253 characters with any search domain of a cluster behind it."""
    manifest = job()
    manifest["metadata"].update(name="j" * 51, namespace="n" * 63, uid="0a1b2c3d-0000")
    address = env(build_worker_pod(parse_job(manifest, templates=False), 1, 0))["RINGTRAIN_LAUNCHER_ADDRESS"]
    host = address.rpartition(":")[0]
    assert host == f"{'j' * 51}-launcher.{'j' * 51}"
    assert len(f"{host}.{'n' * 63}.svc.cluster.local") <= 253


def test_all_pods_have_the_jobs_priority_unless_a_template_names_another():
    """`scheduling.priorityClassName` is of launcher and workers; a template's own stands."""
    scheduling = {"priorityClassName": "high"}
    both = parsed(scheduling=scheduling)
    assert [
        pod["spec"]["priorityClassName"] for pod in (build_launcher_pod(both, 1), build_worker_pod(both, 1, 0))
    ] == [
        "high",
        "high",
    ]
    own = parsed(pod={"priorityClassName": "low"}, scheduling=scheduling)
    assert build_worker_pod(own, 1, 0)["spec"]["priorityClassName"] == "low"


def test_a_gang_is_launcher_and_workers_unless_it_says_less() -> None:
    """An elastic job begins with its launcher and minReplicas; `minAvailable` overrules both."""
    assert parsed(workers=3).min_available == 4
    assert parsed(workers=3, elastic={"minReplicas": 2, "maxReplicas": 4}).min_available == 3
    elastic = {"minReplicas": 2, "maxReplicas": 4}
    assert parsed(workers=3, elastic=elastic, scheduling={"minAvailable": 2}).min_available == 2


@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_workers_are_kept_near_each_other_beside_what_their_template_says(kind: str) -> None:
    """An affinity among the job's own workers; the launcher, which has no devices, runs anywhere."""
    own = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
    field = f"{kind}DuringSchedulingIgnoredDuringExecution"
    given = own if kind == "required" else {"weight": 1, "podAffinityTerm": own}
    affinity = {"podAffinity": {field: [given]}, "nodeAffinity": {}}
    near = parsed(pod={"affinity": affinity}, scheduling={"topology": {kind: "rack"}})
    built = build_worker_pod(near, 1, 0)
    first, ours = built["spec"]["affinity"]["podAffinity"][field]
    assert first == given
    term = ours if kind == "required" else ours["podAffinityTerm"]
    assert term["topologyKey"] == "rack"
    wanted = term["labelSelector"]["matchLabels"].items()
    assert wanted <= built["metadata"]["labels"].items()
    assert not wanted <= build_launcher_pod(near, 1)["metadata"]["labels"].items()
    assert "affinity" not in build_launcher_pod(near, 1)["spec"]


def test_workers_of_an_elastic_job_had_better_run_on_several_nodes() -> None:
    """A wish, and no more: a node that is lost takes as few workers as can be. The launcher is no part of it."""
    elastic = parsed(elastic={"maxReplicas": 4})
    (spread,) = build_worker_pod(elastic, 1, 0)["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    wanted = spread["labelSelector"]["matchLabels"].items()
    assert wanted <= build_worker_pod(elastic, 1, 1)["metadata"]["labels"].items()
    assert not wanted <= build_launcher_pod(elastic, 1)["metadata"]["labels"].items()
    assert "topologySpreadConstraints" not in build_launcher_pod(elastic, 1)["spec"]
    assert "topologySpreadConstraints" not in build_worker_pod(parsed(), 1, 0)["spec"]


@pytest.mark.parametrize(
    ("pod", "topology", "kept"),
    [
        ({"topologySpreadConstraints": []}, None, []),
        ({}, {"preferred": "kubernetes.io/hostname"}, None),
        ({}, {"required": "kubernetes.io/hostname"}, None),
    ],
    ids=["own-constraints", "one-node-preferred", "one-node-required"],
)
def test_the_users_word_on_nodes_goes_first(pod: Json, topology: Json | None, kept: list[Json] | None) -> None:
    """A template's own constraints stay, also an empty list; who wants one node is not sent to several."""
    scheduling = {"topology": topology} if topology else {}
    built = build_worker_pod(parsed(pod=pod, elastic={"maxReplicas": 4}, scheduling=scheduling), 1, 0)
    assert built["spec"].get("topologySpreadConstraints") == kept


def test_checkpoints_in_a_store_need_no_volume() -> None:
    """Ranks and launcher are told the job's own URI, and get their Secret's keys; no claim is mounted."""
    checkpoint = {"uri": "s3://bucket/runs/", "secretRef": {"name": "s3-keys"}}
    given_job = parsed(checkpoint=checkpoint)
    for pod in (build_worker_pod(given_job, 1, 0), build_launcher_pod(given_job, 1)):
        assert env(pod)[contract.ENV_CHECKPOINT_URI] == "s3://bucket/runs/digits-0a1b2c3d-0000"
        assert contract.ENV_CHECKPOINT_DIR not in env(pod)
        assert pod["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
        assert "ringtrain-checkpoint" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_logs_in_a_store_are_the_launchers() -> None:
    """The launcher alone is told where, and has the Secret's keys; its volume stays what it was."""
    given_job = parsed(logs={"uri": "s3://bucket/logs", "secretRef": {"name": "s3-keys"}})
    worker, launcher = build_worker_pod(given_job, 1, 0), build_launcher_pod(given_job, 1)
    assert env(launcher)[contract.ENV_LOG_URI] == "s3://bucket/logs/default/digits-0a1b2c3d-0000"
    assert launcher["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert contract.ENV_LOG_URI not in env(worker)
    assert "envFrom" not in worker["spec"]["containers"][0]
