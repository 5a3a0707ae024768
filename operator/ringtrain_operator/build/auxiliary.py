"""Auxiliary pods (data workers and the evaluator), which continue to run when an attempt ends."""

from .. import contract
from ..spec.job import Job
from . import environment, names, volumes
from .assembly import Pod, add_devices, completed_pod_template, finish_pod, new_pod, template_without_devices
from .settings import BuildSettings

# Fields of the worker's first container that check or manage a rank.
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def build_data_worker_pod(job: Job, index: int, secret: str = "", settings: BuildSettings | None = None) -> Pod:
    """Return the pod of data worker `index`, ready to be created. It never gets devices.

    `secret`: name of the Secret that the pod mounts.
    """
    data = job.spec.data_workers
    assert data is not None
    if data.template is None:
        template = template_without_devices(job)
        for field in ("args", *_PROBES):
            template["spec"]["containers"][0].pop(field, None)
    else:
        template = completed_pod_template(job, data.template, contract.ROLE_DATA)
    labels = names.auxiliary_pod_labels(job, contract.ROLE_DATA) | {contract.LABEL_DATA_INDEX: str(index)}
    pod = new_pod(job, template, names.data_worker_name(job, index), labels)
    spec = pod["spec"]
    main = spec["containers"][0]
    main["command"] = ["ringtrain", "data-worker"]
    shares_node = bool(spec.get("hostNetwork"))
    variables = environment.data_worker_environment(job, index, data, shares_node=shares_node)
    main["env"] = variables + list(main.get("env") or ())
    if not shares_node:
        main.setdefault("ports", []).append({"name": "rt-data", "containerPort": contract.PORT_DATA})
    volumes.add_secret(spec, secret or names.secret_name(job), contract.ROLE_DATA)
    volumes.add_shared_memory(spec)
    finish_pod(job, pod, settings)
    return pod


def build_evaluator_pod(job: Job, workers: int, settings: BuildSettings | None = None) -> Pod:
    """Return the evaluator's pod, which runs the user's command, for a world of `workers` workers.

    It mounts no credentials of the job, because it does not communicate with ranks or launcher.
    """
    evaluator = job.spec.evaluator
    assert evaluator is not None
    if evaluator.template is None:
        template = template_without_devices(job)
    else:
        template = completed_pod_template(job, evaluator.template, contract.ROLE_EVALUATOR)
        main, trainer = template["spec"]["containers"][0], job.spec.worker.template["spec"]["containers"][0]
        if not main.get("command"):
            main.update({field: list(trainer[field]) for field in ("command", "args") if trainer.get(field)})
    labels = names.auxiliary_pod_labels(job, contract.ROLE_EVALUATOR)
    pod = new_pod(job, template, names.evaluator_name(job), labels)
    spec = pod["spec"]
    main = spec["containers"][0]
    add_devices(main, evaluator.devices)
    devices = bool(evaluator.devices) or evaluator.template is not None
    main["env"] = environment.evaluator_environment(job, workers, devices=devices) + list(main.get("env") or ())
    volumes.add_checkpoint(spec, job)
    volumes.add_shared_memory(spec)
    finish_pod(job, pod, settings)
    return pod
