"""Specs that everyone accepts and specs that are refused, for the models here and for a real API server.

`ACCEPTED` and `REJECTED` are creations, `UPDATES` are changes of an accepted spec. A refusal names the field in
`path`. `at_admission` says whether the CRD can know: what it cannot, the operator says in the Accepted condition.
"""

from __future__ import annotations

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


def rules(*given: Manifest) -> Manifest:
    """A `runPolicy` with these failure rules."""
    return {"failureRules": list(given)}


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
    "template": {
        "spec": {"containers": [{"resources": {"requests": {"cpu": "4"}}}], "nodeSelector": {"disk": "ssd"}}
    },
}
_TENSORFLOW = {"replicas": 4, "kind": "tensorflow", "dispatchers": 2, "dispatcherSide": "Compute"}


def data_container(**fields: Any) -> Manifest:
    """`spec.dataWorkers` whose first container has these fields."""
    return {"template": {"spec": {"containers": [fields]}}}


ACCEPTED = [
    Case("smallest", manifest()),
    Case("mpi", manifest(backend="mpi", mpi={"implementation": "MPICH"})),
    Case("mpi-by-default-implementation", manifest(backend="mpi", mpi={})),
    Case("suspended", manifest(runPolicy={"suspend": True})),
    Case(
        "all-workers-placed-together",
        manifest(worker=worker(replicas=4096), elastic={"maxReplicas": 4096}, scheduling={"minAvailable": 4097}),
    ),
    Case("gpu", manifest(worker=worker(devices={"nvidia.com/gpu": 2}))),
    Case("ipu", manifest(worker=worker(devices={"graphcore.ai/ipu": 16}))),
    Case(
        "two-devices-and-slots",
        manifest(slotsPerWorker=2, worker=worker(devices={"amd.com/gpu": 2, "rdma/hca": 1})),
    ),
    Case("nulls-in-a-template", manifest(worker=worker({"env": None}, {"volumes": None, "nodeSelector": None}))),
    Case(
        "mount-of-the-operators-volume",
        manifest(worker=worker({"volumeMounts": [{"name": "ringtrain-shm", "mountPath": "/scratch"}]})),
    ),
    Case("launcher-node-selector", manifest(launcher={"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}})),
    Case("launcher-container-without-image", manifest(launcher={"template": {"spec": {"containers": [{}]}}})),
    Case(
        "logs-in-a-store", manifest(logs={"uri": "s3://bucket/logs", "secretRef": {"name": "s3"}, "emptyDir": {}})
    ),
    Case("metrics-by-a-rule", manifest(logs={"metrics": r"step (?P<step>\d+)"})),
    Case("no-metrics", manifest(logs={"metrics": "none"})),
    Case("logs-on-a-claim", manifest(logs={"persistentVolumeClaim": {"claimName": "logs"}})),
    Case("logs-in-an-emptydir", manifest(logs={"emptyDir": {"sizeLimit": "1Gi"}})),
    Case("checkpoint", manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "/data/c"})),
    Case(
        "checkpoint-in-a-store",
        manifest(checkpoint={"uri": "s3://bucket/runs", "secretRef": {"name": "s3"}, "restoreFrom": "older"}),
    ),
    Case(
        "checkpoint-on-a-claim-and-in-a-store",
        manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "uri": "gs://bucket"}),
    ),
    Case("restore", manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "restoreFrom": "older"})),
    Case("null-is-absent", manifest(slotsPerWorker=None) | {"status": {}}),
    Case(
        "every-policy",
        manifest(
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
            }
        ),
    ),
    Case("someone-elses", manifest(managedBy="kueue.x-k8s.io/multikueue")),
    Case("networking", manifest(networking={"timeoutSeconds": 5, "startTimeoutSeconds": 30})),
    Case("encryption", manifest(networking={"encryption": "tensors"})),
    Case("sites", manifest(networking={"sites": "topology.kubernetes.io/zone"})),
    Case("longest-name", manifest(name="a" * 51)),
    Case("data-workers-of-tensorflow", manifest(dataWorkers=_TENSORFLOW)),
    Case("scheduling", manifest(scheduling=_SCHEDULING, elastic={"maxReplicas": 4})),
    Case("scheduling-preferred", manifest(scheduling={"topology": {"preferred": "kubernetes.io/hostname"}})),
    Case("elastic", manifest(elastic={"maxReplicas": 2})),
    Case("elastic-with-everything", manifest(elastic=_ELASTIC)),
    Case(
        "mpi-with-the-launchers-command",
        manifest(
            backend="mpi",
            worker=worker({"command": None}),
            launcher={"template": {"spec": {"containers": [{"command": ["mpirun", "pi"]}]}}},
        ),
    ),
    Case("elastic-mpi", manifest(backend="mpi", elastic={"maxReplicas": 4, "onLoss": "Restart"})),
    Case("data-workers", manifest(dataWorkers={})),
    Case("data-workers-with-everything", manifest(dataWorkers=_DATA_WORKERS)),
    Case("data-workers-of-mpi", manifest(backend="mpi", dataWorkers={"replicas": 256})),
    Case("evaluator", manifest(evaluator={})),
    Case(
        "evaluator-with-everything",
        manifest(
            evaluator={
                "devices": {"nvidia.com/gpu": 1},
                "timeoutSeconds": 0,
                "template": {"spec": {"containers": [{"command": ["python", "evaluate.py"]}]}},
            }
        ),
    ),
]

REJECTED = [
    Case("no-worker", manifest(worker=None), "spec.worker", "missing"),
    Case("no-template", manifest(worker={"replicas": 1}), "spec.worker.template", "missing"),
    Case(
        "no-containers",
        manifest(worker={"template": {"spec": {"containers": []}}}),
        "spec.worker.template.spec.containers",
    ),
    Case(
        "no-command",
        manifest(worker=worker({"command": None})),
        "spec.worker.template.spec.containers",
        "missing",
    ),
    Case(
        "no-image",
        manifest(worker=worker({"image": None})),
        "spec.worker.template.spec.containers",
        "missing",
    ),
    Case("command-is-a-string", manifest(worker=worker({"command": "python"})), "containers[0].command", "list"),
    Case("backend-unknown", manifest(backend="nccl"), "spec.backend", "'ring' or 'mpi'"),
    Case(
        "replicas-zero", manifest(worker=worker(replicas=0)), "spec.worker.replicas", "greater than or equal to 1"
    ),
    Case("replicas-too-many", manifest(worker=worker(replicas=4097)), "spec.worker.replicas", "4096"),
    Case("replicas-is-a-string", manifest(worker=worker(replicas="2")), "spec.worker.replicas", "integer"),
    Case("slots-zero", manifest(slotsPerWorker=0), "spec.slotsPerWorker", "greater than or equal to 1"),
    Case("slots-too-many", manifest(slotsPerWorker=1025), "spec.slotsPerWorker", "1024"),
    Case("device-without-domain", manifest(worker=worker(devices={"gpu": 1})), "spec.worker.devices", "domain"),
    Case("device-with-newline", manifest(worker=worker(devices={"a.b/c\n": 1})), "spec.worker.devices", "domain"),
    Case("device-count-zero", manifest(worker=worker(devices={"nvidia.com/gpu": 0})), "spec.worker.devices", "1"),
    Case(
        "two-devices-no-slots",
        manifest(worker=worker(devices={"nvidia.com/gpu": 2, "rdma/hca": 1})),
        "spec.slotsPerWorker",
        "set slotsPerWorker",
    ),
    Case(
        "encryption-unknown", manifest(networking={"encryption": "all"}), "spec.networking.encryption", "tensors"
    ),
    Case("sites-of-no-label", manifest(networking={"sites": "a b"}), "spec.networking.sites", "pattern"),
    Case(
        "sites-of-an-elastic-job",
        manifest(networking={"sites": "zone"}, elastic={"maxReplicas": 2}),
        "spec.networking.sites",
        "whose world does not change",
    ),
    Case(
        "sites-under-mpi",
        manifest(backend="mpi", networking={"sites": "zone"}),
        "spec.networking.sites",
        "backend ring",
    ),
    Case(
        "encryption-under-mpi",
        manifest(backend="mpi", networking={"encryption": "tensors"}),
        "spec.networking.encryption",
        "only for backend ring",
    ),
    Case("mpi-under-ring", manifest(mpi={"implementation": "OpenMPI"}), "spec.mpi", "backend: mpi"),
    Case(
        "mpi-unknown", manifest(backend="mpi", mpi={"implementation": "LAM"}), "spec.mpi.implementation", "MPICH"
    ),
    Case(
        "clean-policy", manifest(runPolicy={"cleanPodPolicy": "Some"}), "spec.runPolicy.cleanPodPolicy", "Running"
    ),
    Case("backoff-negative", manifest(runPolicy={"backoffLimit": -1}), "spec.runPolicy.backoffLimit", "0"),
    Case(
        "deadline-zero",
        manifest(runPolicy={"activeDeadlineSeconds": 0}),
        "spec.runPolicy.activeDeadlineSeconds",
        "1",
    ),
    Case("ttl-negative", manifest(runPolicy={"ttlSecondsAfterFinished": -1}), "ttlSecondsAfterFinished", "0"),
    Case("suspend-is-a-string", manifest(runPolicy={"suspend": "yes"}), "spec.runPolicy.suspend", "bool"),
    Case(
        "rule-unknown-action",
        manifest(runPolicy=rules({"action": "Retry", "onReasons": ["AgentLost"]})),
        "spec.runPolicy.failureRules[0].action",
        "FailJob",
    ),
    Case(
        "rule-matches-nothing",
        manifest(runPolicy=rules({"action": "FailJob"})),
        "spec.runPolicy.failureRules[0].onExitCodes",
        "onReasons",
    ),
    Case(
        "rule-without-codes",
        manifest(runPolicy=rules({"action": "FailJob", "onExitCodes": {"operator": "In"}})),
        "spec.runPolicy.failureRules[0].onExitCodes.values",
        "at least one",
    ),
    Case(
        "rule-exit-code-zero",
        manifest(runPolicy=rules({"action": "FailJob", "onExitCodes": {"values": [0]}})),
        "spec.runPolicy.failureRules[0].onExitCodes.values[0]",
        "1",
    ),
    Case(
        "rule-range-upside-down",
        manifest(runPolicy=rules({"action": "FailJob", "onExitCodes": {"ranges": [{"min": 9, "max": 3}]}})),
        "spec.runPolicy.failureRules[0].onExitCodes.ranges[0].min",
        "greater than max",
    ),
    Case(
        "logs-twice",
        manifest(logs={"emptyDir": {}, "persistentVolumeClaim": {"claimName": "c"}}),
        "spec.logs",
        "both",
    ),
    Case("metrics-unnamed", manifest(logs={"metrics": r"step (\d+)"}), "logs.metrics", "named group"),
    Case(
        "metrics-no-rule",
        manifest(logs={"metrics": "(?P<step>"}),
        "spec.logs.metrics",
        "is no regular expression",
        at_admission=False,
    ),
    Case("logs-secret-without-a-store", manifest(logs={"secretRef": {"name": "s3"}}), "secretRef", "is for uri"),
    Case("checkpoint-nowhere", manifest(checkpoint={"mountPath": "/data"}), "uri", "uri or both"),
    Case(
        "checkpoint-in-an-unknown-store",
        manifest(checkpoint={"uri": "ftp://host/path"}),
        "spec.checkpoint.uri",
        "s3",
    ),
    Case("checkpoint-in-no-bucket", manifest(checkpoint={"uri": "s3:///path"}), "spec.checkpoint.uri", "s3"),
    Case(
        "checkpoint-secret-without-a-store",
        manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "secretRef": {"name": "s3"}}),
        "secretRef",
        "is for uri",
    ),
    Case("claim-without-name", manifest(checkpoint={"persistentVolumeClaim": {}}), "claimName", "missing"),
    Case(
        "mount-path-relative",
        manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "data"}),
        "spec.checkpoint.mountPath",
        "pattern",
    ),
    Case(
        "restore-from-outside",
        manifest(checkpoint={"persistentVolumeClaim": {"claimName": "c"}, "restoreFrom": "../x"}),
        "spec.checkpoint.restoreFrom",
        "pattern",
    ),
    Case("elastic-without-bound", manifest(elastic={}), "spec.elastic.maxReplicas", "missing"),
    Case(
        "elastic-below-min",
        manifest(elastic={"minReplicas": 3, "maxReplicas": 4}),
        "spec.worker.replicas",
        "less than elastic.minReplicas",
    ),
    Case(
        "elastic-above-max",
        manifest(elastic={"maxReplicas": 1}),
        "spec.worker.replicas",
        "greater than elastic.maxReplicas",
    ),
    Case("elastic-min-zero", manifest(elastic={**_ELASTIC, "minReplicas": 0}), "spec.elastic.minReplicas", "1"),
    Case("elastic-max-too-many", manifest(elastic={"maxReplicas": 4097}), "spec.elastic.maxReplicas", "4096"),
    Case(
        "elastic-on-loss-unknown",
        manifest(elastic={**_ELASTIC, "onLoss": "Ignore"}),
        "spec.elastic.onLoss",
        "'Replace', 'Shrink' or 'Restart'",
    ),
    Case(
        "elastic-replace-timeout-zero",
        manifest(elastic={**_ELASTIC, "replaceTimeoutSeconds": 0}),
        "spec.elastic.replaceTimeoutSeconds",
        "1",
    ),
    Case(
        "elastic-join-delay-negative",
        manifest(elastic={**_ELASTIC, "joinDelaySeconds": -1}),
        "spec.elastic.joinDelaySeconds",
        "0",
    ),
    Case(
        "elastic-formation-limit-too-high",
        manifest(elastic={**_ELASTIC, "formationLimit": 100_001}),
        "spec.elastic.formationLimit",
        "100000",
    ),
    Case(
        "elastic-mpi-that-lives",
        manifest(backend="mpi", elastic={"maxReplicas": 4}),
        "spec.elastic.onLoss",
        "set elastic.onLoss: Restart",
    ),
    Case(
        "elastic-launcher-as-worker",
        manifest(
            backend="mpi",
            mpi={"runLauncherAsWorker": True},
            elastic={"maxReplicas": 4, "onLoss": "Restart"},
        ),
        "spec.mpi.runLauncherAsWorker",
        "has none of its own",
    ),
    Case("gang-unknown", manifest(scheduling={"gang": "Slurm"}), "spec.scheduling.gang", "Volcano"),
    Case("queue-no-name", manifest(scheduling={"queue": "Research"}), "spec.scheduling.queue", "pattern"),
    Case("min-available-zero", manifest(scheduling={"minAvailable": 0}), "spec.scheduling.minAvailable", "1"),
    Case(
        "min-available-above-all",
        manifest(scheduling={"minAvailable": 4}, elastic={"maxReplicas": 4}),
        "spec.scheduling.minAvailable",
        "worker.replicas + 1",
    ),
    Case(
        "min-available-of-a-job-that-is-not-elastic",
        manifest(scheduling={"minAvailable": 2}),
        "spec.scheduling.minAvailable",
        "is for elastic jobs",
    ),
    Case("gang-timeout-zero", manifest(scheduling={"timeoutSeconds": 0}), "spec.scheduling.timeoutSeconds", "1"),
    Case("topology-of-nothing", manifest(scheduling={"topology": {}}), "spec.scheduling.topology", "not both"),
    Case(
        "topology-twice",
        manifest(scheduling={"topology": {"required": "rack", "preferred": "zone"}}),
        "spec.scheduling.topology",
        "not both",
    ),
    Case(
        "topology-no-label",
        manifest(scheduling={"topology": {"required": "a/b/c"}}),
        "spec.scheduling.topology.required",
        "pattern",
    ),
    Case("timeout-zero", manifest(networking={"timeoutSeconds": 0}), "spec.networking.timeoutSeconds", "1"),
    Case("name-too-long", manifest(name="a" * 52), "metadata.name", "51"),
    Case("name-begins-with-a-digit", manifest(name="7up"), "metadata.name", "letter"),
    Case("name-with-dots", manifest(name="a.b"), "metadata.name", "digits"),
    Case(
        "our-environment",
        manifest(worker=worker({"env": [{"name": "RINGTRAIN_ATTEMPT", "value": "7"}]})),
        "spec.worker.template.spec.containers[0].env[0]",
        "RINGTRAIN_ATTEMPT is set by the operator",
        at_admission=False,
    ),
    Case(
        "our-volume",
        manifest(worker=worker(pod={"volumes": [{"name": "ringtrain-secret", "emptyDir": {}}]})),
        "spec.worker.template.spec.volumes[0].name",
        "rename",
        at_admission=False,
    ),
    Case(
        "our-mount",
        manifest(
            worker=worker(
                {"volumeMounts": [{"name": "x", "mountPath": "/etc/ringtrain/secret/"}]},
                {"volumes": [{"name": "x", "emptyDir": {}}]},
            )
        ),
        "spec.worker.template.spec.containers[0].volumeMounts[0].mountPath",
        "credentials",
        at_admission=False,
    ),
    Case(
        "restart-policy",
        manifest(worker=worker(pod={"restartPolicy": "Always"})),
        "spec.worker.template.spec.restartPolicy",
        "'Never'",
        at_admission=False,
    ),
    Case(
        "host-name",
        manifest(worker=worker(pod={"hostname": "me"})),
        "spec.worker.template.spec.hostname",
        "remove it",
        at_admission=False,
    ),
    Case(
        "launcher-with-devices",
        manifest(
            launcher={"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}
        ),
        "spec.launcher.template.spec.containers[0].resources[nvidia.com/gpu]",
        "never gets devices",
        at_admission=False,
    ),
    Case(
        "devices-disagree",
        manifest(worker=worker({"resources": {"limits": {"nvidia.com/gpu": 1}}}, devices={"nvidia.com/gpu": 2})),
        "spec.worker.template.spec.containers[0].resources[nvidia.com/gpu]",
        "says 2",
        at_admission=False,
    ),
    Case("data-workers-none", manifest(dataWorkers={"replicas": 0}), "spec.dataWorkers.replicas"),
    Case("data-workers-too-many", manifest(dataWorkers={"replicas": 257}), "spec.dataWorkers.replicas"),
    Case("data-workers-unknown-kind", manifest(dataWorkers={"kind": "spark"}), "spec.dataWorkers.kind"),
    Case(
        "dispatchers-without-tensorflow",
        manifest(dataWorkers={"dispatchers": 1}),
        "spec.dataWorkers.dispatchers",
        "kind: tensorflow",
    ),
    Case(
        "dispatcher-side-without-tensorflow",
        manifest(dataWorkers={"dispatcherSide": "Compute"}),
        "spec.dataWorkers.dispatcherSide",
        "kind: tensorflow",
    ),
    Case(
        "data-workers-no-multiple-of-dispatchers",
        manifest(dataWorkers={**_TENSORFLOW, "replicas": 3}),
        "spec.dataWorkers.replicas",
        "multiple of dispatchers",
    ),
    Case(
        "dispatchers-unlike-the-world",
        manifest(dataWorkers={**_TENSORFLOW, "replicas": 6, "dispatchers": 3}),
        "spec.dataWorkers.dispatchers",
        "expected 1 or the number of ranks, 2",
        at_admission=False,
    ),
    Case(
        "dispatchers-in-the-ranks-of-the-job-itself",
        manifest(dataWorkers={**_TENSORFLOW, "dispatcherSide": "Training"}),
        "spec.dataWorkers.dispatcherSide",
        "compute_worker",
    ),
    Case(
        "servers-of-tensorflow-where-tensors-are-encrypted",
        manifest(dataWorkers=_TENSORFLOW, networking={"encryption": "tensors"}),
        "spec.dataWorkers.kind",
        "encrypt nothing",
        at_admission=False,
    ),
    Case(
        "dispatchers-that-scale",
        manifest(dataWorkers={**_TENSORFLOW, "autoscale": {"maxReplicas": 8}}),
        "spec.dataWorkers.autoscale",
        "several dispatchers",
    ),
    Case(
        "dispatchers-of-an-elastic-job",
        manifest(dataWorkers=_TENSORFLOW, elastic={"maxReplicas": 2}),
        "spec.dataWorkers.dispatchers",
        "elastic",
    ),
    Case(
        "autoscale-upside-down",
        manifest(dataWorkers={"replicas": 2, "autoscale": {"minReplicas": 3, "maxReplicas": 2}}),
        "spec.dataWorkers.autoscale.minReplicas",
        "greater than maxReplicas",
    ),
    Case(
        "autoscale-from-outside",
        manifest(dataWorkers={"replicas": 5, "autoscale": {"maxReplicas": 4}}),
        "spec.dataWorkers.replicas",
        "autoscale.minReplicas",
    ),
    Case(
        "autoscale-to-no-wait-at-all",
        manifest(dataWorkers={"autoscale": {"maxReplicas": 4, "targetWaitFraction": 0}}),
        "spec.dataWorkers.autoscale.targetWaitFraction",
    ),
    Case(
        "data-workers-with-devices",
        manifest(dataWorkers=data_container(resources={"limits": {"nvidia.com/gpu": 1}})),
        "spec.dataWorkers.template.spec.containers[0].resources[nvidia.com/gpu]",
        "never get devices",
        at_admission=False,
    ),
    Case(
        "data-workers-with-a-command",
        manifest(dataWorkers=data_container(command=["python", "load.py"])),
        "spec.dataWorkers.template.spec.containers[0].command",
        "ringtrain data-worker",
        at_admission=False,
    ),
    Case(
        "evaluator-whose-role-is-set",
        manifest(
            evaluator={"template": {"spec": {"containers": [{"env": [{"name": "TF_CONFIG", "value": "{}"}]}]}}}
        ),
        "spec.evaluator.template.spec.containers[0].env[0]",
        "TF_CONFIG",
        at_admission=False,
    ),
    Case(
        "evaluator-with-a-device-without-domain",
        manifest(evaluator={"devices": {"gpu": 1}}),
        "spec.evaluator.devices",
        "domain",
    ),
    Case(
        "evaluator-with-other-devices",
        manifest(
            evaluator={
                "devices": {"nvidia.com/gpu": 1},
                "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]}},
            }
        ),
        "spec.evaluator.template.spec.containers[0].resources[nvidia.com/gpu]",
        "keep the latter",
        at_admission=False,
    ),
    Case(
        "mount-that-a-data-worker-has-not",
        manifest(dataWorkers=data_container(volumeMounts=[{"name": "ringtrain-checkpoint", "mountPath": "/c"}])),
        "spec.dataWorkers.template.spec.containers[0].volumeMounts[0].name",
        at_admission=False,
    ),
]

_MAIN = "spec.worker.template.spec.containers[0]"
_TWO_VOLUMES = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "more", "emptyDir": {}}]}
# Inside templates the CRD keeps everything: the models say what Kubernetes' own schema does not have.
TEMPLATES = [
    Case(
        "typo-in-container",
        manifest(worker=worker({"resorces": {}})),
        f"{_MAIN}.resorces",
        "did you mean resources?",
    ),
    Case("typo-in-pod", manifest(worker=worker(pod={"nodeselector": {}})), "spec.nodeselector", "nodeSelector?"),
    Case(
        "typo-in-launcher",
        manifest(launcher={"template": {"spec": {"tolerations": [{"efect": "NoSchedule"}]}}}),
        "spec.launcher.template.spec.tolerations[0].efect",
        "did you mean effect?",
    ),
    Case("typo-in-metadata", manifest(launcher={"template": {"metadata": {"lables": {}}}}), "lables", "labels?"),
    Case(
        "nothing-near-in-template", manifest(worker=worker(pod={"gizmo": 1})), "spec.gizmo", "allowed: activeDead"
    ),
    Case(
        "number-as-env", manifest(worker=worker({"env": [{"name": "A", "value": 1}]})), "env[0].value", "in quotes"
    ),
    Case("yaml-yes", manifest(worker=worker({"tty": "yes"})), f"{_MAIN}.tty", "true or false"),
    Case(
        "word-for-port", manifest(worker=worker({"ports": [{"containerPort": "80"}]})), "containerPort", "integer"
    ),
    Case("mapping-for-list", manifest(worker=worker(pod={"tolerations": {"key": "a"}})), "tolerations", "a list"),
    Case("null-in-list", manifest(worker=worker(pod={"tolerations": [None]})), "tolerations[0]", "null"),
    Case("enum", manifest(worker=worker({"imagePullPolicy": "Often"})), "imagePullPolicy", "IfNotPresent"),
    Case(
        "no-quantity",
        manifest(worker=worker({"resources": {"limits": {"memory": "4GB"}}})),
        f"{_MAIN}.resources.limits[memory]",
        "4Gi",
    ),
    Case("field-missing", manifest(worker=worker({"env": [{"value": "1"}]})), "env[0].name", "missing"),
    Case(
        "mount-of-no-volume",
        manifest(worker=worker({"volumeMounts": [{"name": "dataa", "mountPath": "/d"}]}, _TWO_VOLUMES)),
        f"{_MAIN}.volumeMounts[0].name",
        "did you mean data?",
    ),
    Case(
        "mount-of-nothing-near",
        manifest(worker=worker({"volumeMounts": [{"name": "datasets", "mountPath": "/d"}]})),
        f"{_MAIN}.volumeMounts[0].name",
        "it has none",
    ),
    Case(
        "two-mounts-at-one-path",
        manifest(
            worker=worker(
                {"volumeMounts": [{"name": name, "mountPath": "/d"} for name in ("data", "more")]}, _TWO_VOLUMES
            )
        ),
        f"{_MAIN}.volumeMounts[1].mountPath",
        "as is",
    ),
    Case(
        "two-containers-of-a-name",
        manifest(worker=worker(pod={"initContainers": [{"name": "train", "image": "i"}]})),
        f"{_MAIN}.name",
        "another name",
    ),
    Case(
        "two-volumes-of-a-name",
        manifest(worker=worker(pod={"volumes": [{"name": "v", "emptyDir": {}}] * 2})),
        "spec.worker.template.spec.volumes[1].name",
        "another name",
    ),
]

# A structural schema drops unknown fields without a word unless the client asks for strict field validation (as
# kubectl does); the models always say it.
UNKNOWN_FIELDS = [
    Case("typo", manifest(slotPerWorker=2), "spec.slotPerWorker", "did you mean slotsPerWorker?"),
    Case("typo-inside", manifest(runPolicy={"backofLimit": 1}), "spec.runPolicy.backofLimit", "backoffLimit"),
    Case("nothing-near", manifest(gizmo=1), "spec.gizmo", "allowed: agent, backend"),
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
