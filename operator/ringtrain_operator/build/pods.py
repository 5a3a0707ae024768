"""Pods of launcher and workers: the user's template with the fields and variables of docs/contract.md."""

import copy
from dataclasses import dataclass
from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.pod_rules import quantity_value
from . import environment, names, volumes
from .agent import add_agent
from .assembly import Pod, add_devices, completed_pod_template, finish_pod, new_pod
from .settings import BuildSettings

# A launcher whose loops hang for two minutes is killed, and the gang restarts.
LIVENESS = {
    "initialDelaySeconds": 60,
    "periodSeconds": 20,
    "timeoutSeconds": 10,
    "failureThreshold": 6,
}


# Exit codes of a killed launcher (SIGKILL, also out of memory or liveness probe; SIGSEGV, SIGABRT).
RESTARTED_CODES = (137, 139, 134)
# Weights of preferences: avoiding a bad node outweighs nearness.
_AVOIDED_WEIGHT = 100
_NEARNESS_WEIGHT = 50
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True)
class PodIncarnation:
    """Number of an elastic job's pod among those with the same name, counted from 1, and the nodes to avoid.

    `formation`: for a launcher's pod, the last known generation of the attempt's world.
    """

    number: int
    avoided_nodes: tuple[str, ...] = ()
    formation: int = 0


def build_worker_pod(
    job: Job,
    attempt: int,
    index: int,
    secret: str = "",
    incarnation: PodIncarnation | None = None,
    *,
    settings: BuildSettings | None = None,
) -> Pod:
    """Return the pod of worker `index` in `attempt`, ready to be created. `secret`: name of the Secret
    that it mounts.
    """
    labels = names.pod_labels(job, contract.ROLE_WORKER, attempt)
    pod = new_pod(job, job.spec.worker.template_of(index), names.worker_name(job, index), labels)
    pod["metadata"]["labels"][contract.LABEL_WORKER_INDEX] = str(index)
    if incarnation is not None:
        pod["metadata"]["labels"][contract.LABEL_INCARNATION] = str(incarnation.number)
        _avoid_nodes(pod["spec"], incarnation.avoided_nodes)
    _keep_workers_near(pod["spec"], job)
    _spread_workers(pod["spec"], job)
    spec = pod["spec"]
    main = spec["containers"][0]
    command = [*(main.get("command") or []), *(main.pop("args", None) or [])]
    program = add_agent(job, spec, settings or BuildSettings())
    main["command"] = [program, "agent", *(["--", *command] if command else [])]
    number = incarnation.number if incarnation is not None else 0
    variables = environment.worker_environment(job, attempt, index, number)
    main["env"] = variables + list(main.get("env") or ())
    if not spec.get("hostNetwork"):  # there it would reserve the node's port for one pod
        main.setdefault("ports", []).append({"name": "rt-agent", "containerPort": contract.PORT_AGENT})
    add_devices(main, job.spec.worker.devices)
    volumes.add_secret(spec, secret or names.secret_name(job), contract.ROLE_WORKER)
    volumes.add_checkpoint(spec, job)
    volumes.add_shared_memory(spec)
    volumes.add_scratch(spec)
    finish_pod(job, pod, settings)
    return pod


def build_typical_worker_pod(job: Job, attempt: int, secret: str = "", *, settings: BuildSettings | None = None) -> Pod:
    """Return the worker pod from which queues and autoscalers compute the resources of each worker.

    If worker 0 has a template of its own, the training container has the larger amount of each resource in the two
    templates.
    """
    pod, first = build_worker_pod(job, attempt, 1, secret, settings=settings), job.spec.worker.rank0_template
    if first is not None:
        main = pod["spec"]["containers"][0]
        main["resources"] = _larger_resources(main, first["spec"]["containers"][0])
    return pod


def _larger_resources(*containers: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of the first container, raised to the largest amounts of all `containers`; an absent request
    equals the limit."""
    given = [container.get("resources") or {} for container in containers]
    requests, limits = ([one.get(kind) or {} for one in given] for kind in ("requests", "limits"))
    requests = [most | least for most, least in zip(limits, requests, strict=True)]
    made = {"requests": _larger_amounts(requests), "limits": _larger_amounts(limits)}
    larger = _larger_amounts([made["limits"], made["requests"]])
    made["limits"] = {name: larger[name] for name in made["limits"]}
    return {**given[0], **{kind: amounts for kind, amounts in made.items() if amounts}}


def _larger_amounts(several: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for amounts in several:
        for name, amount in amounts.items():
            found[name] = max(found.get(name, amount), amount, key=lambda one: quantity_value(one) or 0)
    return found


def build_launcher_pod(
    job: Job,
    attempt: int,
    secret: str = "",
    settings: BuildSettings | None = None,
    incarnation: PodIncarnation | None = None,
) -> Pod:
    """Return the pod of the launcher in `attempt`, ready to be created. It gets no devices."""
    settings = settings or BuildSettings()
    template = _launcher_template(job, settings)
    labels = names.pod_labels(job, contract.ROLE_LAUNCHER, attempt)
    pod = new_pod(job, template, names.launcher_name(job), labels)
    spec = pod["spec"]
    main = spec["containers"][0]
    command = [*main.get("command", []), *main.pop("args", [])] or _mpi_command(job)
    main["command"] = [add_agent(job, spec, settings), "launcher", *(["--", *command] if command else [])]
    volumes.add_scratch(spec)
    if not command:  # only our launcher runs there, which writes to volumes only
        main.setdefault("securityContext", {}).setdefault("readOnlyRootFilesystem", True)
    formation = incarnation.formation if incarnation is not None else 0
    variables = environment.launcher_environment(job, attempt, settings.token(), formation)
    main["env"] = variables + list(main.get("env") or ())
    control_port, status_port = names.launcher_ports(job)
    ports = {"rt-control": control_port, "rt-status": status_port}
    main.setdefault("ports", []).extend({"name": name, "containerPort": port} for name, port in ports.items())
    main.setdefault("livenessProbe", {"httpGet": {"path": "/healthz", "port": status_port}, **LIVENESS})
    if incarnation is not None:
        pod["metadata"]["labels"][contract.LABEL_INCARNATION] = str(incarnation.number)
    if job.spec.elastic is not None:
        _restart_when_killed(main)
    volumes.add_secret(spec, secret or names.secret_name(job), contract.ROLE_LAUNCHER)
    volumes.add_logs(spec, job)
    volumes.add_checkpoint(spec, job)
    volumes.add_hostfile(spec, job)
    finish_pod(job, pod, settings)
    return pod


def _avoid_nodes(spec: dict[str, Any], nodes: tuple[str, ...]) -> None:
    """Add a preference for nodes other than `nodes` to a pod's spec, in place."""
    if not nodes:
        return
    # The API allows one name per expression.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    of_nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    wishes = list(of_nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or ())
    wish = {"weight": _AVOIDED_WEIGHT, "preference": {"matchFields": fields}}
    of_nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [*wishes, wish]


def _keep_workers_near(spec: dict[str, Any], job: Job) -> None:
    """Add the pod affinity of `scheduling.topology` to the affinity of a pod's spec, in place."""
    topology = job.spec.scheduling.topology
    if topology is None:
        return
    term: dict[str, Any] = {
        "labelSelector": _worker_affinity_term(job),
        "topologyKey": topology.required or topology.preferred,
    }
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    of_pods = affinity["podAffinity"] = dict(affinity.get("podAffinity") or {})
    kind = "required" if topology.required else "preferred"
    field = f"{kind}DuringSchedulingIgnoredDuringExecution"
    wish = term if topology.required else {"weight": _NEARNESS_WEIGHT, "podAffinityTerm": term}
    of_pods[field] = [*(of_pods.get(field) or ()), wish]


def _spread_workers(spec: dict[str, Any], job: Job) -> None:
    """Add a preference to spread an elastic job's workers over nodes, unless the template has constraints for that.

    A lost node then does not have both a shard of the optimizer state and its replica.
    """
    topology = job.spec.scheduling.topology
    near = topology is not None and _HOSTNAME in (topology.required, topology.preferred)
    if job.spec.elastic is None or near or "topologySpreadConstraints" in spec:
        return
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": _HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": _worker_affinity_term(job),
        }
    ]


def _worker_affinity_term(job: Job) -> dict[str, Any]:
    """Return a pod affinity term that selects the job's workers."""
    return {"matchLabels": {contract.LABEL_JOB: job.name, contract.LABEL_ROLE: contract.ROLE_WORKER}}


def _restart_when_killed(main: dict[str, Any]) -> None:
    """Add rules to the container `main`, in place, by which the kubelet restarts a killed launcher. The new process
    gets the world's state from the agents.

    API servers before Kubernetes 1.35 drop the rule; the pod then fails.
    """
    if main.get("restartPolicy"):
        return
    killed = {"operator": "In", "values": list(RESTARTED_CODES)}
    main.update(restartPolicy="Never", restartPolicyRules=[{"action": "Restart", "exitCodes": killed}])


def _launcher_template(job: Job, settings: BuildSettings) -> Pod:
    """Return the launcher's pod template, with missing fields copied from the worker's template."""
    template = completed_pod_template(job, job.spec.launcher.template, contract.ROLE_LAUNCHER)
    template["spec"]["containers"][0].setdefault("resources", _launcher_resources(job, settings))
    return template


def _launcher_resources(job: Job, settings: BuildSettings) -> dict[str, Any]:
    """Return the launcher's default resources: the installation's, or a worker's without devices if it runs ranks."""
    if job.num_agents == job.num_workers:
        return copy.deepcopy(dict(settings.launcher_resources))
    trainer = job.spec.worker.template["spec"]["containers"][0].get("resources") or {}
    own = {
        field: {name: amount for name, amount in (trainer.get(field) or {}).items() if "/" not in name}
        for field in ("requests", "limits")
    }
    return {field: amounts for field, amounts in own.items() if amounts} or {
        "requests": copy.deepcopy(settings.launcher_resources.get("requests") or {})
    }


def _mpi_command(job: Job) -> list[str]:
    """Return the launcher's command for backend mpi: mpirun with the worker's command. Empty for other backends."""
    if job.spec.backend != "mpi":
        return []
    main = job.spec.worker.template["spec"]["containers"][0]
    return ["mpirun", *main["command"], *(main.get("args") or [])]
