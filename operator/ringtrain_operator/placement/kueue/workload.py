"""Workload for a whole job of Kueue."""

from collections.abc import Mapping
from typing import Any

from ... import contract
from ...build import names
from ...build.auxiliary import build_data_worker_pod, build_evaluator_pod
from ...build.pods import build_launcher_pod, build_typical_worker_pod
from ...build.settings import BuildSettings
from ...spec.job import Job
from ..base import reduced_template

Json = dict[str, Any]

# Names of a Workload's pod sets, by role.
POD_SETS = {
    contract.ROLE_LAUNCHER: "launcher",
    contract.ROLE_WORKER: "workers",
    contract.ROLE_DATA: "data",
    contract.ROLE_EVALUATOR: "evaluator",
}
KUEUE_GROUP = "kueue.x-k8s.io"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
# Kueue marks a Workload with this label as finished if its job is deleted.
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"


def workload_name(name: str, uid: str, labels: Mapping[str, str]) -> str:
    """Return the name of a job's Workload: the name in MultiKueue's label, or else a name derived from the job."""
    return labels.get(PREBUILT_LABEL) or f"{name}-{uid[:8]}"


def is_prebuilt(job: Job) -> bool:
    """Return whether another controller creates the job's Workload, as MultiKueue does on the cluster
    where a job runs.
    """
    return bool(job.labels.get(PREBUILT_LABEL))


def build_workload(job: Job, version: str, priority: Mapping[str, Any], settings: BuildSettings) -> Json:
    """Return the Workload that waits for quota for all of the job's pods. `version`: version of Kueue's API.
    `priority`: fields with the Workload's priority class and value."""
    name = workload_name(job.name, job.uid, job.labels)
    metadata = names.metadata(job, name, {**names.job_labels(job), JOB_UID_LABEL: job.uid})
    spec: Json = {"queueName": job.queue, "active": True, "podSets": _pod_sets(job, settings), **priority}
    return {"apiVersion": f"{KUEUE_GROUP}/{version}", "kind": "Workload", "metadata": metadata, "spec": spec}


def kueue_pod_counts(job: Job) -> dict[str, int]:
    """Return the number of pods of each pod set that may change its size while the job waits.

    For data workers it is the maximum, because quota cannot be added to a running job.
    """
    data = job.spec.data_workers
    return {"workers": job.num_workers} | ({"data": data.most} if data is not None else {})


def _pod_sets(job: Job, settings: BuildSettings) -> list[Json]:
    workers: Json = {
        "name": "workers",
        "count": job.num_workers,
        "template": reduced_template(build_typical_worker_pod(job, 1, settings=settings)),
    }
    elastic, topology = job.spec.elastic, job.spec.scheduling.topology
    if topology is not None:
        level = {"required": topology.required} if topology.required else {"preferred": topology.preferred}
        workers["topologyRequest"] = {**level, "podIndexLabel": contract.LABEL_WORKER_INDEX}
    if elastic is not None and elastic.min_replicas < job.num_workers:
        workers["minCount"] = elastic.min_replicas
    launcher = {
        "name": "launcher",
        "count": 1,
        "template": reduced_template(build_launcher_pod(job, 1, "", settings)),
    }
    return [launcher, workers, *_auxiliary_pod_sets(job)]


def _auxiliary_pod_sets(job: Job) -> list[Json]:
    found: list[Json] = []
    if job.spec.data_workers is not None:
        template = reduced_template(build_data_worker_pod(job, 0))
        found.append({"name": "data", "count": kueue_pod_counts(job)["data"], "template": template})
    if job.spec.evaluator is not None:
        template = reduced_template(build_evaluator_pod(job, job.num_workers))
        found.append({"name": "evaluator", "count": 1, "template": template})
    return found
