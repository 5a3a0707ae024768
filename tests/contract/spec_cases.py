"""Specs that everyone accepts and specs that are refused, for the models here and for a real API server.

`ACCEPTED` and `REJECTED` are creations, `UPDATES` are changes of an accepted spec. A refusal names the field in
`path`. `at_admission` says whether the CRD can know: what it cannot, the operator says in the Accepted condition.
"""

import copy
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One manifest; `path` and `says` are in the refusal, if it is refused."""

    id: str
    manifest: Manifest
    path: str = ""
    says: str = ""
    at_admission: bool = True


@dataclass(frozen=True)
class Update:
    """A change from `old` to `new`; `path` is empty when it is allowed."""

    id: str
    old: Manifest
    new: Manifest
    path: str = ""


def manifest(name: str = "job", **spec: Any) -> Manifest:
    """A job that is valid unless `spec` makes it otherwise; a field set to None is left out."""
    fields = {key: value for key, value in {"worker": worker(), **spec}.items() if value is not None}
    return {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": fields,
    }


def worker(container: Manifest | None = None, pod: Manifest | None = None, **fields: Any) -> Manifest:
    """A valid `spec.worker`, changed by what is given; None takes a container's field away."""
    base: dict[str, Any] = {"name": "train", "image": "example.com/train", "command": ["python", "train.py"]}
    main = {key: value for key, value in {**base, **(container or {})}.items() if value is not None}
    return {"replicas": 2, "template": {"spec": {"containers": [main], **(pod or {})}}, **fields}


def _labelled(**metadata: Manifest) -> Manifest:
    """A valid `spec.worker` whose template has this metadata."""
    made = worker()
    made["template"]["metadata"] = metadata
    return made


def _beside(sidecar: Manifest, container: Manifest | None = None) -> Manifest:
    """A `spec.worker` whose first container is this sidecar, and whose second one trains."""
    made = worker(container)
    made["template"]["spec"]["containers"].insert(0, sidecar)
    return made


def first_worker(container: Manifest | None = None, pod: Manifest | None = None, **fields: Any) -> Manifest:
    """A `spec.worker` whose worker 0 has a template with this container and pod; `fields` as in `worker`."""
    return {**worker(**fields), "rank0Template": worker(container, pod)["template"]}


def rules(*given: Manifest) -> Manifest:
    """A `runPolicy` with these failure rules."""
    return {"failureRules": list(given)}


def accepted(id: str, **spec: Any) -> Case:
    """A job with this `spec` is accepted."""
    return Case(id, manifest(**spec))


def refused(id: str, path: str, says: str = "", *, at_admission: bool = True, **spec: Any) -> Case:
    """A job with this `spec` is refused, with `path` and `says` in the words."""
    return Case(id, manifest(**spec), path, says, at_admission)


_ELASTIC = {
    "minReplicas": 2,
    "maxReplicas": 4096,
    "onLoss": "Shrink",
    "replaceTimeoutSeconds": 1,
    "joinDelaySeconds": 0,
    "formationLimit": 100_000,
}
_SCHEDULING = {
    "gang": "Kubernetes",
    "queue": "research",
    "priorityClassName": "high",
    "minAvailable": 3,
    "timeoutSeconds": 60,
    "topology": {"required": "topology.kubernetes.io/rack"},
}

_DATA_WORKERS = {
    "replicas": 4,
    "slotsPerWorker": 2,
    "kind": "ringtrain",
    "autoscale": {"minReplicas": 2, "maxReplicas": 16, "targetWaitFraction": 0.1},
    "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "4"}}}], "nodeSelector": {"disk": "ssd"}}},
}
_TENSORFLOW = {"replicas": 4, "kind": "tensorflow", "dispatchers": 2, "dispatcherSide": "Compute"}


def data_container(**fields: Any) -> Manifest:
    """`spec.dataWorkers` whose first container has these fields."""
    return {"template": {"spec": {"containers": [fields]}}}


_FIRST = "spec.worker.rank0Template.spec"
_MOUNTS = [{"name": "none", "mountPath": "/data"}]


def _resources(amounts: dict[str, int]) -> Manifest:
    """Fields of a container that requests these devices."""
    return {"resources": {"requests": amounts, "limits": amounts}}


ACCEPTED = [
    accepted(
        "own-resolver",
        worker=worker(
            pod={
                "dnsPolicy": "None",
                "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["team.svc.cluster.local"]},
            }
        ),
    ),
    accepted("launcher-with-dns-of-the-node", launcher={"template": {"spec": {"dnsPolicy": "Default"}}}),
    accepted(
        "labels", worker=_labelled(labels={"a.b/C_d": "x.Y-1", "empty": ""}, annotations={"A.B/c": "any: \u00fc"})
    ),
    accepted("smallest"),
    accepted(
        "rank0-template", worker=first_worker({"command": ["sh"], "image": "b"}, {"nodeSelector": {"disk": "ssd"}})
    ),
    accepted("rank0-template-with-devices", worker=first_worker(devices={"a.b/c": 1}), elastic={"maxReplicas": 4}),
    accepted("mpi", backend="mpi", mpi={"implementation": "MPICH"}),
    accepted("mpi-by-default-implementation", backend="mpi", mpi={}),
    accepted("suspended", runPolicy={"suspend": True}),
    accepted(
        "all-workers-placed-together",
        worker=worker(replicas=4096),
        elastic={"maxReplicas": 4096},
        scheduling={"minAvailable": 4097},
    ),
    accepted("gpu", worker=worker(devices={"nvidia.com/gpu": 2})),
    accepted("ipu", worker=worker(devices={"graphcore.ai/ipu": 16})),
    accepted("two-devices-and-slots", slotsPerWorker=2, worker=worker(devices={"amd.com/gpu": 2, "rdma/hca": 1})),
    accepted("nulls-in-a-template", worker=worker({"env": None}, {"volumes": None, "nodeSelector": None})),
    accepted(
        "mount-of-the-operators-volume",
        worker=worker({"volumeMounts": [{"name": "ringtrain-shm", "mountPath": "/scratch"}]}),
    ),
    accepted("launcher-node-selector", launcher={"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}),
    accepted("launcher-container-without-image", launcher={"template": {"spec": {"containers": [{}]}}}),
    accepted("logs-in-a-store", logs={"uri": "s3://bucket/logs", "secretRef": {"name": "s3"}, "emptyDir": {}}),
    accepted("metrics-by-a-rule", logs={"metrics": r"step (?P<step>\d+)"}),
    accepted("no-metrics", logs={"metrics": "none"}),
    accepted("logs-on-a-claim", logs={"persistentVolumeClaim": {"claimName": "logs"}}),
    accepted("logs-in-an-emptydir", logs={"emptyDir": {"sizeLimit": "1Gi"}}),
    accepted("checkpoint", checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "/data/c"}),
    accepted(
        "checkpoint-in-a-store",
        checkpoint={"uri": "s3://bucket/runs", "secretRef": {"name": "s3"}, "restoreFrom": "older"},
    ),
    accepted(
        "checkpoint-on-a-claim-and-in-a-store",
        checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "uri": "gs://bucket"},
    ),
    accepted("restore", checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "restoreFrom": "older"}),
    Case("null-is-absent", manifest(slotsPerWorker=None) | {"status": {}}),
    accepted(
        "every-policy",
        runPolicy={
            "suspend": False,
            "cleanPodPolicy": "All",
            "ttlSecondsAfterFinished": 0,
            "activeDeadlineSeconds": 1,
            "backoffLimit": 0,
            "progressDeadlineSeconds": 600,
            "failureRules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 42]}},
                {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "ranges": [{"min": 1, "max": 127}]}},
                {"action": "RestartJob", "onReasons": ["AgentLost", "NotAssembled"]},
            ],
        },
    ),
    accepted("someone-elses", managedBy="kueue.x-k8s.io/multikueue"),
    accepted("networking", networking={"timeoutSeconds": 5, "startTimeoutSeconds": 30}),
    accepted("encryption", networking={"encryption": "tensors"}),
    accepted("sites", networking={"sites": "topology.kubernetes.io/zone"}),
    accepted("sites-of-an-elastic-job", networking={"sites": "zone"}, elastic={"maxReplicas": 2}),
    accepted("longest-name", name="a" * 51),
    accepted("data-workers-of-tensorflow", dataWorkers=_TENSORFLOW),
    accepted("scheduling", scheduling=_SCHEDULING, elastic={"maxReplicas": 4}),
    accepted("scheduling-preferred", scheduling={"topology": {"preferred": "kubernetes.io/hostname"}}),
    accepted("elastic", elastic={"maxReplicas": 2}),
    accepted("elastic-with-everything", elastic=_ELASTIC),
    accepted(
        "mpi-with-the-launchers-command",
        backend="mpi",
        worker=worker({"command": None}),
        launcher={"template": {"spec": {"containers": [{"command": ["mpirun", "pi"]}]}}},
    ),
    accepted("sidecar-first", worker=_beside({"name": "proxy", "image": "example.com/proxy"})),
    accepted("elastic-mpi", backend="mpi", elastic={"maxReplicas": 4, "onLoss": "Restart"}),
    accepted("data-workers", dataWorkers={}),
    accepted("data-workers-with-everything", dataWorkers=_DATA_WORKERS),
    accepted("data-workers-of-mpi", backend="mpi", dataWorkers={"replicas": 256}),
    accepted("evaluator", evaluator={}),
    accepted(
        "evaluator-with-everything",
        evaluator={
            "devices": {"nvidia.com/gpu": 1},
            "timeoutSeconds": 0,
            "template": {"spec": {"containers": [{"command": ["python", "evaluate.py"]}]}},
        },
    ),
]

REJECTED = [
    refused("no-worker", "spec.worker", "missing", worker=None),
    refused("no-template", "spec.worker.template", "missing", worker={"replicas": 1}),
    refused("no-containers", "spec.worker.template.spec.containers", worker={"template": {"spec": {"containers": []}}}),
    refused("no-command", "spec.worker.template.spec.containers", "missing", worker=worker({"command": None})),
    refused("no-image", "spec.worker.template.spec.containers", "missing", worker=worker({"image": None})),
    refused(
        "no-command-beside-one-with",
        "spec.worker.template.spec.containers[1].command",
        "missing",
        worker=_beside({"name": "proxy", "image": "example.com/proxy", "command": ["./proxy"]}, {"command": None}),
        at_admission=False,
    ),
    refused("rank0-no-containers", f"{_FIRST}.containers", worker={**worker(), "rank0Template": {"spec": {}}}),
    refused("rank0-no-image", f"{_FIRST}.containers[0].image", "missing", worker=first_worker({"image": None})),
    refused("rank0-under-mpi", _FIRST[:-5], "only for backend ring", worker=first_worker(), backend="mpi"),
    *(
        refused(f"rank0-{id}", f"{_FIRST}.{path}", says, worker=changed, at_admission=False)
        for id, path, says, changed in (
            ("no-command", "containers[0].command", "missing", first_worker({"command": None})),
            ("torchrun", "containers[0].command", "starts torchrun", first_worker({"command": ["torchrun", "a.py"]})),
            ("devices", "containers[0].resources[a.b/c]", "is 2, and 0 in", first_worker(_resources({"a.b/c": 2}))),
            (
                "amount",
                "containers[0].resources[a.b/c]",
                "devices says 1",
                first_worker(_resources({"a.b/c": 2}), devices={"a.b/c": 1}),
            ),
            ("host-network", "hostNetwork", "is true, and null in", first_worker(pod={"hostNetwork": True})),
            ("volume", "containers[0].volumeMounts[0]", "such volume", first_worker({"volumeMounts": _MOUNTS})),
            ("variable", "containers[0].env[0]", "operator", first_worker({"env": [{"name": "RINGTRAIN_ROLE"}]})),
            ("resolver", "dnsPolicy", "launcher's name", first_worker(pod={"dnsPolicy": "Default"})),
            ("typo", "containers[0].resorces", "did you mean resources?", first_worker({"resorces": {}})),
        )
    ),
    refused("command-is-a-string", "containers[0].command", "list", worker=worker({"command": "python"})),
    refused("backend-unknown", "spec.backend", "'ring' or 'mpi'", backend="nccl"),
    refused("replicas-zero", "spec.worker.replicas", "expected at least 1", worker=worker(replicas=0)),
    refused("replicas-too-many", "spec.worker.replicas", "4096", worker=worker(replicas=4097)),
    refused("replicas-is-a-string", "spec.worker.replicas", "a whole number", worker=worker(replicas="2")),
    refused("manager-without-a-domain", "spec.managedBy", "a domain, '/' and a name", managedBy="me"),
    refused("slots-zero", "spec.slotsPerWorker", "expected at least 1", slotsPerWorker=0),
    refused("slots-too-many", "spec.slotsPerWorker", "1024", slotsPerWorker=1025),
    refused("device-without-domain", "spec.worker.devices", "domain", worker=worker(devices={"gpu": 1})),
    refused("device-with-newline", "spec.worker.devices", "domain", worker=worker(devices={"a.b/c\n": 1})),
    refused("device-count-zero", "spec.worker.devices", "1", worker=worker(devices={"nvidia.com/gpu": 0})),
    refused(
        "two-devices-no-slots",
        "spec.slotsPerWorker",
        "set slotsPerWorker",
        worker=worker(devices={"nvidia.com/gpu": 2, "rdma/hca": 1}),
    ),
    refused("encryption-unknown", "spec.networking.encryption", "tensors", networking={"encryption": "all"}),
    refused("sites-of-no-label", "spec.networking.sites", "the key of a label", networking={"sites": "a b"}),
    refused("sites-under-mpi", "spec.networking.sites", "backend ring", backend="mpi", networking={"sites": "zone"}),
    refused(
        "encryption-under-mpi",
        "spec.networking.encryption",
        "only for backend ring",
        backend="mpi",
        networking={"encryption": "tensors"},
    ),
    refused("mpi-under-ring", "spec.mpi", "backend: mpi", mpi={"implementation": "OpenMPI"}),
    refused("mpi-unknown", "spec.mpi.implementation", "MPICH", backend="mpi", mpi={"implementation": "LAM"}),
    refused("clean-policy", "spec.runPolicy.cleanPodPolicy", "Running", runPolicy={"cleanPodPolicy": "Some"}),
    refused("backoff-negative", "spec.runPolicy.backoffLimit", "0", runPolicy={"backoffLimit": -1}),
    refused("deadline-zero", "spec.runPolicy.activeDeadlineSeconds", "1", runPolicy={"activeDeadlineSeconds": 0}),
    refused("ttl-negative", "ttlSecondsAfterFinished", "0", runPolicy={"ttlSecondsAfterFinished": -1}),
    refused("suspend-is-a-string", "spec.runPolicy.suspend", "true or false", runPolicy={"suspend": "yes"}),
    refused(
        "rule-unknown-action",
        "spec.runPolicy.failureRules[0].action",
        "FailJob",
        runPolicy=rules({"action": "Retry", "onReasons": ["AgentLost"]}),
    ),
    refused(
        "rule-matches-nothing",
        "spec.runPolicy.failureRules[0].onExitCodes",
        "onReasons",
        runPolicy=rules({"action": "FailJob"}),
    ),
    refused(
        "rule-without-codes",
        "spec.runPolicy.failureRules[0].onExitCodes.values",
        "at least one",
        runPolicy=rules({"action": "FailJob", "onExitCodes": {"operator": "In"}}),
    ),
    refused(
        "rule-exit-code-zero",
        "spec.runPolicy.failureRules[0].onExitCodes.values[0]",
        "1",
        runPolicy=rules({"action": "FailJob", "onExitCodes": {"values": [0]}}),
    ),
    refused(
        "rule-range-upside-down",
        "spec.runPolicy.failureRules[0].onExitCodes.ranges[0].min",
        "greater than max",
        runPolicy=rules({"action": "FailJob", "onExitCodes": {"ranges": [{"min": 9, "max": 3}]}}),
    ),
    refused("logs-twice", "spec.logs", "both", logs={"emptyDir": {}, "persistentVolumeClaim": {"claimName": "c"}}),
    refused("metrics-unnamed", "logs.metrics", "named group", logs={"metrics": r"step (\d+)"}),
    refused(
        "metrics-no-rule",
        "spec.logs.metrics",
        "is no valid regular expression at character",
        at_admission=False,
        logs={"metrics": "(?P<step>"},
    ),
    refused("logs-secret-without-a-store", "secretRef", "is for uri", logs={"secretRef": {"name": "s3"}}),
    refused("checkpoint-nowhere", "uri", "uri or both", checkpoint={"mountPath": "/data"}),
    refused("checkpoint-in-an-unknown-store", "spec.checkpoint.uri", "s3", checkpoint={"uri": "ftp://host/path"}),
    refused("checkpoint-in-no-bucket", "spec.checkpoint.uri", "s3", checkpoint={"uri": "s3:///path"}),
    refused(
        "checkpoint-secret-without-a-store",
        "secretRef",
        "is for uri",
        checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "secretRef": {"name": "s3"}},
    ),
    refused("claim-without-name", "claimName", "missing", checkpoint={"persistentVolumeClaim": {}}),
    refused(
        "mount-path-relative",
        "spec.checkpoint.mountPath",
        "an absolute path",
        checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "data"},
    ),
    refused(
        "restore-from-outside",
        "spec.checkpoint.restoreFrom",
        "lower-case letters",
        checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "restoreFrom": "../x"},
    ),
    refused("elastic-without-bound", "spec.elastic.maxReplicas", "missing", elastic={}),
    refused(
        "elastic-below-min",
        "spec.worker.replicas",
        "from elastic.minReplicas to elastic.maxReplicas",
        elastic={"minReplicas": 3, "maxReplicas": 4},
    ),
    refused(
        "elastic-above-max",
        "spec.worker.replicas",
        "from elastic.minReplicas to elastic.maxReplicas",
        elastic={"maxReplicas": 1},
    ),
    refused(
        "elastic-min-above-max",
        "spec.elastic.minReplicas",
        "minReplicas must not be greater than maxReplicas",
        elastic={"minReplicas": 3, "maxReplicas": 2},
    ),
    refused("elastic-min-zero", "spec.elastic.minReplicas", "1", elastic={**_ELASTIC, "minReplicas": 0}),
    refused("elastic-max-too-many", "spec.elastic.maxReplicas", "4096", elastic={"maxReplicas": 4097}),
    refused(
        "elastic-on-loss-unknown",
        "spec.elastic.onLoss",
        "'Replace', 'Shrink' or 'Restart'",
        elastic={**_ELASTIC, "onLoss": "Ignore"},
    ),
    refused(
        "elastic-replace-timeout-zero",
        "spec.elastic.replaceTimeoutSeconds",
        "1",
        elastic={**_ELASTIC, "replaceTimeoutSeconds": 0},
    ),
    refused(
        "elastic-join-delay-negative",
        "spec.elastic.joinDelaySeconds",
        "0",
        elastic={**_ELASTIC, "joinDelaySeconds": -1},
    ),
    refused(
        "elastic-formation-limit-too-high",
        "spec.elastic.formationLimit",
        "100000",
        elastic={**_ELASTIC, "formationLimit": 100_001},
    ),
    refused(
        "elastic-mpi-that-lives",
        "spec.elastic.onLoss",
        "set elastic.onLoss: Restart",
        backend="mpi",
        elastic={"maxReplicas": 4},
    ),
    refused(
        "elastic-launcher-as-worker",
        "spec.mpi.runLauncherAsWorker",
        "runs none itself",
        backend="mpi",
        mpi={"runLauncherAsWorker": True},
        elastic={"maxReplicas": 4, "onLoss": "Restart"},
    ),
    refused("gang-unknown", "spec.scheduling.gang", "Volcano", scheduling={"gang": "Slurm"}),
    refused("queue-no-name", "spec.scheduling.queue", "lower-case letters", scheduling={"queue": "Research"}),
    refused("min-available-zero", "spec.scheduling.minAvailable", "1", scheduling={"minAvailable": 0}),
    refused(
        "min-available-above-all",
        "spec.scheduling.minAvailable",
        "worker.replicas + 1",
        scheduling={"minAvailable": 4},
        elastic={"maxReplicas": 4},
    ),
    refused(
        "min-available-of-a-job-that-is-not-elastic",
        "spec.scheduling.minAvailable",
        "is for elastic jobs",
        scheduling={"minAvailable": 2},
    ),
    refused("gang-timeout-zero", "spec.scheduling.timeoutSeconds", "1", scheduling={"timeoutSeconds": 0}),
    refused(
        "logs-misspelt",
        "spec.logs.emptyDir.sizelimit",
        "sizeLimit",
        at_admission=False,
        logs={"emptyDir": {"sizelimit": "1Gi"}},
    ),
    refused("topology-of-nothing", "spec.scheduling.topology", "not both", scheduling={"topology": {}}),
    refused(
        "topology-twice",
        "spec.scheduling.topology",
        "not both",
        scheduling={"topology": {"required": "rack", "preferred": "zone"}},
    ),
    refused(
        "topology-no-label",
        "spec.scheduling.topology.required",
        "the key of a label",
        scheduling={"topology": {"required": "a/b/c"}},
    ),
    refused("timeout-zero", "spec.networking.timeoutSeconds", "1", networking={"timeoutSeconds": 0}),
    refused("name-too-long", "metadata.name", "51", name="a" * 52),
    refused("name-begins-with-a-digit", "metadata.name", "letter", name="7up"),
    *(
        refused(f"name-{name}", "metadata.name", "give the job another name", name=name)
        for name in ("kubernetes", "localhost", "local", "onion")
    ),
    refused("name-with-dots", "metadata.name", "digits", name="a.b"),
    refused(
        "our-environment",
        "spec.worker.template.spec.containers[0].env[0]",
        "RINGTRAIN_ATTEMPT is set by the operator",
        at_admission=False,
        worker=worker({"env": [{"name": "RINGTRAIN_ATTEMPT", "value": "7"}]}),
    ),
    refused(
        "our-volume",
        "spec.worker.template.spec.volumes[0].name",
        "rename",
        at_admission=False,
        worker=worker(pod={"volumes": [{"name": "ringtrain-secret", "emptyDir": {}}]}),
    ),
    refused(
        "our-mount",
        "spec.worker.template.spec.containers[0].volumeMounts[0].mountPath",
        "credentials",
        at_admission=False,
        worker=worker(
            {"volumeMounts": [{"name": "x", "mountPath": "/etc/ringtrain/secret/"}]},
            {"volumes": [{"name": "x", "emptyDir": {}}]},
        ),
    ),
    refused(
        "restart-policy",
        "spec.worker.template.spec.restartPolicy",
        "'Never'",
        at_admission=False,
        worker=worker(pod={"restartPolicy": "Always"}),
    ),
    *(
        refused(
            f"restart-policy-never-{section}",
            f"spec.{section}.template.spec.restartPolicy",
            "is 'never', allowed: 'Never'",
            at_admission=False,
            **more,
        )
        for section, more in (
            ("worker", {"worker": worker(pod={"restartPolicy": "never"})}),
            ("launcher", {"launcher": {"template": {"spec": {"restartPolicy": "never"}}}}),
        )
    ),
    refused(
        "host-name",
        "spec.worker.template.spec.hostname",
        "remove it",
        at_admission=False,
        worker=worker(pod={"hostname": "me"}),
    ),
    refused(
        "launcher-with-devices",
        "spec.launcher.template.spec.containers[0].resources[nvidia.com/gpu]",
        "never gets devices",
        at_admission=False,
        launcher={"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}},
    ),
    refused(
        "devices-disagree",
        "spec.worker.template.spec.containers[0].resources[nvidia.com/gpu]",
        "says 2",
        at_admission=False,
        worker=worker({"resources": {"limits": {"nvidia.com/gpu": 1}}}, devices={"nvidia.com/gpu": 2}),
    ),
    refused("data-workers-none", "spec.dataWorkers.replicas", dataWorkers={"replicas": 0}),
    refused("data-workers-too-many", "spec.dataWorkers.replicas", dataWorkers={"replicas": 257}),
    refused("data-workers-unknown-kind", "spec.dataWorkers.kind", dataWorkers={"kind": "spark"}),
    refused(
        "dispatchers-without-tensorflow",
        "spec.dataWorkers.dispatchers",
        "kind: tensorflow",
        dataWorkers={"dispatchers": 1},
    ),
    refused(
        "dispatcher-side-without-tensorflow",
        "spec.dataWorkers.dispatcherSide",
        "kind: tensorflow",
        dataWorkers={"dispatcherSide": "Compute"},
    ),
    refused(
        "data-workers-no-multiple-of-dispatchers",
        "spec.dataWorkers.replicas",
        "multiple of dispatchers",
        dataWorkers={**_TENSORFLOW, "replicas": 3},
    ),
    refused(
        "dispatchers-unlike-the-world",
        "spec.dataWorkers.dispatchers",
        "expected 1 or the number of ranks, 2",
        at_admission=False,
        dataWorkers={**_TENSORFLOW, "replicas": 6, "dispatchers": 3},
    ),
    refused(
        "dispatchers-in-the-ranks-of-the-job-itself",
        "spec.dataWorkers.dispatcherSide",
        "compute_worker",
        dataWorkers={**_TENSORFLOW, "dispatcherSide": "Training"},
    ),
    refused(
        "servers-of-tensorflow-where-tensors-are-encrypted",
        "spec.dataWorkers.kind",
        "encrypt nothing",
        at_admission=False,
        dataWorkers=_TENSORFLOW,
        networking={"encryption": "tensors"},
    ),
    refused(
        "dispatchers-that-scale",
        "spec.dataWorkers.autoscale",
        "several dispatchers",
        dataWorkers={**_TENSORFLOW, "autoscale": {"maxReplicas": 8}},
    ),
    refused(
        "dispatchers-of-an-elastic-job",
        "spec.dataWorkers.dispatchers",
        "elastic",
        dataWorkers=_TENSORFLOW,
        elastic={"maxReplicas": 2},
    ),
    refused(
        "autoscale-upside-down",
        "spec.dataWorkers.autoscale.minReplicas",
        "greater than maxReplicas",
        dataWorkers={"replicas": 2, "autoscale": {"minReplicas": 3, "maxReplicas": 2}},
    ),
    refused(
        "autoscale-from-outside",
        "spec.dataWorkers.replicas",
        "autoscale.minReplicas",
        dataWorkers={"replicas": 5, "autoscale": {"maxReplicas": 4}},
    ),
    refused(
        "autoscale-to-no-wait-at-all",
        "spec.dataWorkers.autoscale.targetWaitFraction",
        dataWorkers={"autoscale": {"maxReplicas": 4, "targetWaitFraction": 0}},
    ),
    refused(
        "data-workers-with-devices",
        "spec.dataWorkers.template.spec.containers[0].resources[nvidia.com/gpu]",
        "never get devices",
        at_admission=False,
        dataWorkers=data_container(resources={"limits": {"nvidia.com/gpu": 1}}),
    ),
    refused(
        "data-workers-with-a-command",
        "spec.dataWorkers.template.spec.containers[0].command",
        "ringtrain data-worker",
        at_admission=False,
        dataWorkers=data_container(command=["python", "load.py"]),
    ),
    refused(
        "evaluator-whose-role-is-set",
        "spec.evaluator.template.spec.containers[0].env[0]",
        "TF_CONFIG",
        at_admission=False,
        evaluator={"template": {"spec": {"containers": [{"env": [{"name": "TF_CONFIG", "value": "{}"}]}]}}},
    ),
    refused(
        "evaluator-with-a-device-without-domain",
        "spec.evaluator.devices",
        "domain",
        evaluator={"devices": {"gpu": 1}},
    ),
    refused(
        "evaluator-with-other-devices",
        "spec.evaluator.template.spec.containers[0].resources[nvidia.com/gpu]",
        "remove it here",
        at_admission=False,
        evaluator={
            "devices": {"nvidia.com/gpu": 1},
            "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]}},
        },
    ),
    refused(
        "mount-that-a-data-worker-has-not",
        "spec.dataWorkers.template.spec.containers[0].volumeMounts[0].name",
        at_admission=False,
        dataWorkers=data_container(volumeMounts=[{"name": "ringtrain-checkpoint", "mountPath": "/c"}]),
    ),
]

_MAIN = "spec.worker.template.spec.containers[0]"
_TWO_VOLUMES = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "more", "emptyDir": {}}]}
# Inside templates the CRD keeps everything: the models say what Kubernetes' own schema does not have.
TEMPLATES = [
    refused("typo-in-container", f"{_MAIN}.resorces", "did you mean resources?", worker=worker({"resorces": {}})),
    refused("typo-in-pod", "spec.nodeselector", "nodeSelector?", worker=worker(pod={"nodeselector": {}})),
    refused(
        "typo-in-launcher",
        "spec.launcher.template.spec.tolerations[0].efect",
        "did you mean effect?",
        launcher={"template": {"spec": {"tolerations": [{"efect": "NoSchedule"}]}}},
    ),
    refused("typo-in-metadata", "lables", "labels?", launcher={"template": {"metadata": {"lables": {}}}}),
    refused("nothing-near-in-template", "spec.gizmo", "allowed: activeDead", worker=worker(pod={"gizmo": 1})),
    refused("number-as-env", "env[0].value", "in quotes", worker=worker({"env": [{"name": "A", "value": 1}]})),
    refused("yaml-yes", f"{_MAIN}.tty", "true or false", worker=worker({"tty": "yes"})),
    refused("word-for-port", "containerPort", "integer", worker=worker({"ports": [{"containerPort": "80"}]})),
    refused("mapping-for-list", "tolerations", "a list", worker=worker(pod={"tolerations": {"key": "a"}})),
    refused("null-in-list", "tolerations[0]", "null", worker=worker(pod={"tolerations": [None]})),
    refused(
        "dns-of-the-node",
        "spec.worker.template.spec.dnsPolicy",
        "the node's DNS does not know",
        worker=worker(pod={"dnsPolicy": "Default"}),
    ),
    refused(
        "dns-without-services",
        "spec.dataWorkers.template.spec.dnsPolicy",
        "dnsConfig.searches has no <namespace>.svc",
        dataWorkers={
            "template": {"spec": {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a.b"]}}}
        },
    ),
    refused(
        "label-number",
        "spec.worker.template.metadata.labels[run]",
        "is 7; must be a string: put it in quotes",
        worker=_labelled(labels={"run": 7}),
    ),
    refused(
        "label-value",
        "spec.worker.template.metadata.labels[also]",
        "is 'has space'; expected at most 63",
        worker=_labelled(labels={"also": "has space"}),
    ),
    refused(
        "annotation-key",
        "spec.worker.template.metadata.annotations[bad key!]",
        "is a key that Kubernetes refuses",
        worker=_labelled(annotations={"bad key!": "any value"}),
    ),
    refused("enum", "imagePullPolicy", "IfNotPresent", worker=worker({"imagePullPolicy": "Often"})),
    refused(
        "no-quantity",
        f"{_MAIN}.resources.limits[memory]",
        "did you mean 4Gi or 4G?",
        worker=worker({"resources": {"limits": {"memory": "4GB"}}}),
    ),
    *(
        refused(
            f"no-quantity-of-cpu-{amount}",
            f"{_MAIN}.resources.requests[cpu]",
            hint,
            worker=worker({"resources": {"requests": {"cpu": amount}}}),
        )
        for amount, hint in (
            ("100mi", "is '100mi'; did you mean 100m?"),
            ("1.5 M", "did you mean 1.5m?"),
            ("4GB", "expected CPUs, for example 500m or 2"),
            ("two", "expected CPUs, for example 500m or 2"),
        )
    ),
    refused("field-missing", "env[0].name", "missing", worker=worker({"env": [{"value": "1"}]})),
    refused(
        "mount-of-no-volume",
        f"{_MAIN}.volumeMounts[0].name",
        "did you mean data?",
        worker=worker({"volumeMounts": [{"name": "dataa", "mountPath": "/d"}]}, _TWO_VOLUMES),
    ),
    refused(
        "mount-of-nothing-near",
        f"{_MAIN}.volumeMounts[0].name",
        "it has none",
        worker=worker({"volumeMounts": [{"name": "datasets", "mountPath": "/d"}]}),
    ),
    refused(
        "two-mounts-at-one-path",
        f"{_MAIN}.volumeMounts[1].mountPath",
        "as is",
        worker=worker({"volumeMounts": [{"name": name, "mountPath": "/d"} for name in ("data", "more")]}, _TWO_VOLUMES),
    ),
    refused(
        "two-containers-of-a-name",
        f"{_MAIN}.name",
        "as is",
        worker=worker(pod={"initContainers": [{"name": "train", "image": "i"}]}),
    ),
    refused(
        "two-volumes-of-a-name",
        "spec.worker.template.spec.volumes[1].name",
        "as is",
        worker=worker(pod={"volumes": [{"name": "v", "emptyDir": {}}] * 2}),
    ),
]

# A structural schema drops unknown fields without a word unless the client asks for strict field validation (as
# kubectl does); the models always say it.
UNKNOWN_FIELDS = [
    refused("workers", "spec.workers", "did you mean worker?", workers={}),
    refused("case-of-worker", "spec.Worker", "did you mean worker?", Worker={}),
    refused("typo", "spec.slotPerWorker", "did you mean slotsPerWorker?", slotPerWorker=2),
    refused("typo-inside", "spec.runPolicy.backofLimit", "backoffLimit", runPolicy={"backofLimit": 1}),
    refused("typo-elsewhere", "spec.replica", "did you mean spec.worker.replicas?", replica=2),
    refused("typo-of-a-pods-field", "spec.nodeSelectors", "template.spec.nodeSelector?", nodeSelectors={}),
    refused("nothing-near", "spec.gizmo", "allowed: agent, backend", gizmo=1),
]


def _changed(old: Manifest, **spec: Any) -> Manifest:
    new = copy.deepcopy(old)
    new["spec"].update(spec)
    return new


_RUNNING = manifest(slotsPerWorker=2)
_SUSPENDED = manifest(slotsPerWorker=2, runPolicy={"suspend": True})
_OTHER_IMAGE = worker({"image": "example.com/other"})


def _claim(name: str) -> Manifest:
    return {"persistentVolumeClaim": {"claimName": name}}


_MPI = manifest(backend="mpi", mpi={"options": ["--oversubscribe"]})
_ON_A_CLAIM = _changed(_RUNNING, checkpoint=_claim("c"))
# What takes effect at the next attempt only: changed under a running job it would do so silently.
_SECTIONS = {
    "checkpoint": _claim("c"),
    "logs": _claim("l"),
    "networking": {"timeoutSeconds": 7},
    "scheduling": {"queue": "research"},
    "elastic": {"maxReplicas": 4},
}
_UP_TO_THREE = manifest(elastic={"maxReplicas": 3})

_SERVED = manifest(dataWorkers=_DATA_WORKERS)
_OF_TWO_RANKS = manifest(dataWorkers=_TENSORFLOW)
_OF_ONE = manifest(dataWorkers={**_TENSORFLOW, "dispatchers": 1})

UPDATES = [
    Update("replicas", _RUNNING, _changed(_RUNNING, worker=worker(replicas=3))),
    Update("suspend", _RUNNING, _changed(_RUNNING, runPolicy={"suspend": True})),
    Update("resume-and-change", _SUSPENDED, _changed(_RUNNING, backend="mpi")),
    Update("slots-while-suspended", _SUSPENDED, _changed(_SUSPENDED, slotsPerWorker=4)),
    Update("template-while-suspended", _SUSPENDED, _changed(_SUSPENDED, worker=_OTHER_IMAGE)),
    Update("same-template", _RUNNING, _changed(_RUNNING, worker=worker())),
    Update("backend", _RUNNING, _changed(_RUNNING, backend="mpi"), "spec.backend"),
    Update("slots", _RUNNING, _changed(_RUNNING, slotsPerWorker=4), "spec.slotsPerWorker"),
    Update("slots-removed", _RUNNING, manifest(), "spec.slotsPerWorker"),
    Update("devices", _RUNNING, _changed(_RUNNING, worker=worker(devices={"a.b/c": 1})), "spec.worker.devices"),
    Update("template", _RUNNING, _changed(_RUNNING, worker=_OTHER_IMAGE), "spec.worker.template"),
    Update(
        "unknown-field-of-template",
        _RUNNING,
        _changed(_RUNNING, worker=worker(pod={"nodeSelector": {"disk": "ssd"}})),
        "spec.worker.template",
    ),
    Update("rank0-template", _RUNNING, _changed(_RUNNING, worker=first_worker()), "spec.worker.rank0Template"),
    Update("rank0-template-while-suspended", _SUSPENDED, _changed(_SUSPENDED, worker=first_worker())),
    Update(
        "launcher-template",
        _RUNNING,
        _changed(_RUNNING, launcher={"template": {"spec": {"nodeSelector": {"a": "b"}}}}),
        "spec.launcher.template",
    ),
    *(
        Update(f"data-workers-{id}", _SERVED, _changed(_SERVED, dataWorkers=new), path)
        for id, new, path in (
            ("replicas", {**_DATA_WORKERS, "replicas": 9}, ""),
            ("autoscale", {**_DATA_WORKERS, "autoscale": {"maxReplicas": 4}}, ""),
            (
                "autoscale-removed",
                {"replicas": 3, **{k: _DATA_WORKERS[k] for k in ("slotsPerWorker", "template")}},
                "",
            ),
            ("slots", {**_DATA_WORKERS, "slotsPerWorker": 3}, "spec.dataWorkers"),
            ("template", {**_DATA_WORKERS, "template": {"spec": {}}}, "spec.dataWorkers"),
            ("template-removed", {**_DATA_WORKERS, "template": None}, "spec.dataWorkers"),
            ("removed", None, "spec.dataWorkers"),
        )
    ),
    Update("replicas-with-one-dispatcher", _OF_ONE, _changed(_OF_ONE, worker=worker(replicas=3))),
    Update(
        "replicas-and-dispatchers-while-suspended",
        _changed(_OF_TWO_RANKS, runPolicy={"suspend": True}),
        _changed(
            _OF_TWO_RANKS,
            worker=worker(replicas=4),
            dataWorkers={**_TENSORFLOW, "dispatchers": 4},
        ),
    ),
    Update("data-workers-added", _RUNNING, _changed(_RUNNING, dataWorkers={}), "spec.dataWorkers"),
    Update("data-workers-added-while-suspended", _SUSPENDED, _changed(_SUSPENDED, dataWorkers={}), ""),
    Update("evaluator-added", _RUNNING, _changed(_RUNNING, evaluator={}), "spec.evaluator"),
    Update("evaluator-added-while-suspended", _SUSPENDED, _changed(_SUSPENDED, evaluator={}), ""),
    Update("mpi", _MPI, _changed(_MPI, mpi={"implementation": "MPICH"}), "spec.mpi"),
    Update("suspend-and-change", _RUNNING, _changed(_SUSPENDED, backend="mpi"), "spec.backend"),
    *(
        Update(f"{section}-{what}", *change, f"spec.{section}")
        for section, value in _SECTIONS.items()
        for what, change in (
            ("set", (_RUNNING, _changed(_RUNNING, **{section: value}))),
            ("removed", (_changed(_RUNNING, **{section: value}), _RUNNING)),
        )
    ),
    Update("checkpoint-changed", _ON_A_CLAIM, _changed(_ON_A_CLAIM, checkpoint=_claim("e")), "spec.checkpoint"),
    Update("checkpoint-while-suspended", _SUSPENDED, _changed(_SUSPENDED, checkpoint=_claim("c"))),
    Update("same-checkpoint", _ON_A_CLAIM, _changed(_ON_A_CLAIM, worker=worker(replicas=3))),
    Update("elastic-replicas", _UP_TO_THREE, _changed(_UP_TO_THREE, worker=worker(replicas=3))),
    Update("elastic-bound", _UP_TO_THREE, _changed(_UP_TO_THREE, elastic={"maxReplicas": 4}), "spec.elastic"),
    Update("manager", _RUNNING, _changed(_RUNNING, managedBy="other/x"), "spec.managedBy"),
]
