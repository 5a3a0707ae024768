"""Pod in which `dtj` reads the logs of a job whose launcher has ended. It mounts the launcher's log volume."""

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

# Label of reader pods, with the job's name. They have no other label of the job's pods, so the plan ignores them.
LABEL_READER = f"{contract.GROUP}/log-reader"
MANAGED_BY = "dtj"
CONTAINER = "reader"

# Variables of the launcher that `ringtrain logs` reads.
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
# Fields that determine nodes, image access and file permissions.
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
    """Return a pod that sleeps for `lives_s` seconds and has the job's log store mounted read-only.

    Image, node and user are those of the job's launcher. In this pod, `ringtrain logs` prints the same as in the
    launcher of `attempt`. `suffix`: makes the pod's name unique. `agent_image`: image from which the operator injected
    the agent; if there is one, the pod runs this image instead of the launcher's.
    """
    launcher = build_launcher_pod(job, attempt)["spec"]
    main = launcher["containers"][0]
    spec = {field: launcher[field] for field in _POD_FIELDS if launcher.get(field)}
    spec.update(
        restartPolicy="Never",
        activeDeadlineSeconds=lives_s,
        terminationGracePeriodSeconds=1,  # sleep as PID 1 ignores SIGTERM
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        securityContext=launcher["securityContext"],
        containers=[_log_reader_container(main, lives_s, job, agent_image)],
        volumes=[volume for volume in launcher["volumes"] if volume["name"] == VOLUME_LOGS],
    )
    add_security_defaults(spec, FS_GROUP)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _log_reader_metadata(job, suffix), "spec": spec}


def _log_reader_metadata(job: Job, suffix: str) -> dict[str, Any]:
    """Return metadata with the job as an owner of the pod, so that the pod is deleted together with the job.

    The job is not the pod's controller, because the operator would manage a pod that the job controls.
    """
    owner = names.owner_references(job)[0]
    # blockOwnerDeletion would require permission to update the job's finalizers.
    return {
        "name": f"{job.name}-logs-{suffix}",
        "namespace": job.namespace,
        "labels": {contract.LABEL_MANAGED_BY: MANAGED_BY, LABEL_READER: job.name},
        "ownerReferences": [{**owner, "controller": False, "blockOwnerDeletion": False}],
    }


def _log_reader_container(main: dict[str, Any], lives_s: int, job: Job, agent_image: str) -> dict[str, Any]:
    context = {k: v for k, v in (main.get("securityContext") or {}).items() if k in _USER_FIELDS}
    ours = [entry for entry in main["env"] if entry["name"] in _VARIABLES]
    # The user's variables, such as PATH. Values from Secrets are omitted: a Secret may be deleted, and is not needed.
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
