"""The pod in which `dtj` reads the log store of a job whose launcher is over: its launcher's, without all else."""

from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.reserved import VOLUME_LOGS
from . import names
from .agent import PYTHON
from .assembly import Pod
from .pods import build_launcher_pod
from .security import add_security_defaults
from .settings import FS_GROUP

# On reader pods alone, with the job's name. They have no label of the job's pods: they are none of its gang.
LABEL_READER = f"{contract.GROUP}/log-reader"
MANAGED_BY = "dtj"
CONTAINER = "reader"

# Of the launcher's variables, what `ringtrain logs` reads.
_VARIABLES = frozenset(
    {
        contract.ENV_JOB_NAME,
        contract.ENV_JOB_NAMESPACE,
        contract.ENV_ATTEMPT,
        contract.ENV_NUM_WORKERS,
        contract.ENV_SLOTS_PER_WORKER,
        contract.ENV_LOG_DIR,
        contract.ENV_LOG_URI,
    }
)
# What decides where a pod may run, with which image, and whose files it may read.
_POD_FIELDS = (
    "affinity",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "serviceAccountName",
    "tolerations",
)
_USER_FIELDS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions")


def build_log_reader_pod(job: Job, attempt: int, suffix: str, lives_s: int, agent_image: str = "") -> Pod:
    """A pod that sleeps for `lives_s` seconds beside the job's log store, which it cannot change.

    Image, node and user are those of the job's launcher; `ringtrain logs` reads as in a launcher of `attempt`.
    `suffix`: what makes its name unique. `agent_image`: the one that the operator has brought the job's agent
    from; the reader has that image then, and needs nothing of the launcher's.
    """
    launcher = build_launcher_pod(job, attempt)["spec"]
    main = launcher["containers"][0]
    spec = {field: launcher[field] for field in _POD_FIELDS if launcher.get(field)}
    spec.update(
        restartPolicy="Never",
        activeDeadlineSeconds=lives_s,
        terminationGracePeriodSeconds=1,  # sleep as a container's first process hears no SIGTERM
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        securityContext=launcher["securityContext"],
        containers=[_log_reader_container(main, lives_s, job, agent_image)],
        volumes=[volume for volume in launcher["volumes"] if volume["name"] == VOLUME_LOGS],
    )
    add_security_defaults(spec, FS_GROUP)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _log_reader_metadata(job, suffix), "spec": spec}


def _log_reader_metadata(job: Job, suffix: str) -> dict[str, Any]:
    """The job is its owner, so that it goes with the job, and not its controller: the operator leaves it alone."""
    owner = names.owner_references(job)[0]
    # blockOwnerDeletion would ask for the right to the job's finalizers.
    return {
        "name": f"{job.name}-logs-{suffix}",
        "namespace": job.namespace,
        "labels": {contract.LABEL_MANAGED_BY: MANAGED_BY, LABEL_READER: job.name},
        "ownerReferences": [{**owner, "controller": False, "blockOwnerDeletion": False}],
    }


def _log_reader_container(main: dict[str, Any], lives_s: int, job: Job, agent_image: str) -> dict[str, Any]:
    context = {k: v for k, v in (main.get("securityContext") or {}).items() if k in _USER_FIELDS}
    ours = [entry for entry in main["env"] if entry["name"] in _VARIABLES]
    # The user's own, such as PATH. What comes from Secrets may be gone, and is not needed.
    theirs = [e for e in main["env"] if "value" in e and not e["name"].startswith("RINGTRAIN_")]
    mounts = [{**m, "readOnly": True} for m in main["volumeMounts"] if m["name"] == VOLUME_LOGS]
    secret = job.spec.logs.secret_ref
    sources = {"envFrom": [{"secretRef": {"name": secret.name}}]} if secret else {}
    chosen = {field: main[field] for field in ("image", "imagePullPolicy", "resources") if main.get(field)}
    command = ["sleep", str(lives_s)]
    if agent_image:
        chosen = {"image": agent_image, **({"resources": main["resources"]} if main.get("resources") else {})}
        command = [PYTHON, "-c", f"import time; time.sleep({lives_s})"]
    return {
        **chosen,
        **sources,
        "name": CONTAINER,
        "command": command,
        "env": ours + theirs,
        "volumeMounts": mounts,
        "securityContext": {**context, "readOnlyRootFilesystem": True},
    }
