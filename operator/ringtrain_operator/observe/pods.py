"""Parsers of the API's dicts to `PodView`, and of a launcher's /status to `LauncherReport`."""

import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from .. import contract
from ..errors import shown
from ..spec.base import parse_time
from ..spec.reserved import VOLUME_SECRET
from .model import (
    LauncherReport,
    MainContainer,
    PodEnd,
    PodIdentity,
    PodPlace,
    PodReason,
    PodView,
    Role,
)

# Waiting reasons of a container that occur in every start; they are not reported as a cause.
_ORDINARY_WAITING = frozenset({"", "ContainerCreating", "PodInitializing"})
_ROLES: dict[Any, Role] = {
    contract.ROLE_LAUNCHER: "launcher",
    contract.ROLE_DATA: "data",
    contract.ROLE_EVALUATOR: "evaluator",
}
_FIELDS: dict[Role, str] = {"data": "dataWorkers"}
# Start and end of an image pull.
Pull = tuple[datetime | None, datetime | None]
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    """Return whether the object's controller has this uid."""
    return any(
        ref.get("controller") and ref.get("uid") == uid for ref in _metadata_of(obj).get("ownerReferences") or ()
    )


def owner_name(obj: Mapping[str, Any]) -> str:
    """Return the object's controller as `Kind name`; empty if the object has no controller."""
    owner = next((ref for ref in _metadata_of(obj).get("ownerReferences") or () if ref.get("controller")), None)
    return f"{owner.get('kind')} {owner.get('name')}" if owner else ""


def main_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a pod that has the operator's variables; if none has them, the first container.

    Admission webhooks may insert other containers before the main container.
    """
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    ours = (c for c in containers if any(e.get("name") == contract.ENV_ROLE for e in c.get("env") or ()))
    return next(ours, containers[0])


def view_pod(pod: Mapping[str, Any], nodes: Mapping[str, bool] | None = None) -> PodView:
    """Parse a pod of the job as read from the API. `nodes`: readiness of nodes by name, where known."""
    meta, status, spec = _metadata_of(pod), pod.get("status") or {}, pod.get("spec") or {}
    labels = meta.get("labels") or {}
    node = str(spec.get("nodeName") or "")
    name = str(main_container(pod).get("name") or "")
    main = _pod_container_status(status.get("containerStatuses"), name)
    other = {} if _ended_state(main) else _first_failed_container(status)
    ended = _ended_state(main) or _previous_end_with_message(main) or _ended_state(other)
    role = _ROLES.get(labels.get(contract.LABEL_ROLE), "worker")
    return PodView(
        id=PodIdentity(
            name=str(meta.get("name")),
            uid=str(meta.get("uid") or ""),
            role=role,
            attempt=_integer_or_zero(labels.get(contract.LABEL_ATTEMPT)),
            index=_integer_or_zero(labels.get(contract.LABEL_WORKER_INDEX) or labels.get(contract.LABEL_DATA_INDEX)),
            incarnation=_integer_or_zero(labels.get(contract.LABEL_INCARNATION)),
            created_at=parse_time(meta.get("creationTimestamp")),
        ),
        phase=status.get("phase") or "Pending",
        deletion_time=parse_time(meta.get("deletionTimestamp")),
        secret=_mounted_secret_name(spec),
        place=_pod_place(status, node, (nodes or {}).get(node)),
        main=MainContainer(
            name=name,
            image=str(main.get("image") or ""),
            image_id=str(main.get("imageID") or ""),
            ready=bool(main.get("ready")) or "running" in (main.get("state") or {}),
            started_at=parse_time(_started_state(main).get("startedAt")),
        ),
        state=PodReason(str(status.get("reason") or ""), str(status.get("message") or "")),
        wait=_pod_wait(status, role),
        disrupted=_pod_disruption(status),
        end=PodEnd(
            code=ended.get("exitCode"),
            reason=str(ended.get("reason") or ""),
            time=parse_time(ended.get("finishedAt")),
            message=str(storable_json(ended.get("message")) or ""),
            other_container=_other_container_name(status, other),
            side_failure=_side_failure(status, name),
            all_ended=_have_all_ended(spec, status),
        ),
    )


def pull_of(events: Iterable[Mapping[str, Any]], container: str) -> Pull:
    """Return start and end of the image pull of one container, from Kubernetes `events` of its pod.

    The start is None if the node already had the image.
    """
    field, times = f"spec.containers{{{container}}}", dict[str, datetime]()
    for event in events:
        if (event.get("involvedObject") or {}).get("fieldPath") != field:
            continue
        series = event.get("series") or {}
        first = event.get("eventTime") or event.get("firstTimestamp")
        last = series.get("lastObservedTime") or event.get("lastTimestamp")
        # The first attempt counts for the start of a pull that was retried.
        time = parse_time(first or last if event.get("reason") == "Pulling" else last or first)
        if time is not None:
            times[str(event.get("reason"))] = time
    return times.get("Pulling"), times.get("Pulled")


def termination_of(pod: PodView, attempt: int) -> dict[str, Any]:
    """Return the pod's termination message as a dict; empty if it has none of this attempt."""
    try:
        message = storable_json(json.loads(pod.end.message))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(message, dict) or message.get("version") != contract.TERMINATION_MESSAGE_VERSION:
        return {}
    return message if message.get("attempt") == attempt else {}


def failure_in(pod: PodView, attempt: int) -> dict[str, Any]:
    """Return the failure that the pod's termination message reports; empty if it reports none."""
    failure = termination_of(pod, attempt).get("failure")
    return failure if isinstance(failure, dict) else {}


def status_token(pod: Mapping[str, Any]) -> str:
    """Return the token for a launcher's /status, from the variables of its pod; empty if absent."""
    variables = {e.get("name"): e.get("value") for e in main_container(pod).get("env") or ()}
    return str(variables.get(contract.ENV_STATUS_TOKEN) or "")


def page_token(secret: str) -> str:
    """Derive the token of a launcher's page from `secret`, which is the token of its /status."""
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


def read_report(raw: Mapping[str, Any]) -> LauncherReport:
    """Parse the JSON of a launcher's /status into a report.

    Raises OtherStatusVersion if it has another version of the contract, ValueError if it is not a /status.
    """
    try:
        _check_status_version(raw["version"])
        return _view_launcher_report(storable_json(raw))
    except (KeyError, TypeError, OverflowError, OSError, RecursionError) as exc:
        raise ValueError(f"the launcher's /status is malformed: {exc!r}") from exc


def by_index(entries: Iterable[object], most: int) -> dict[int, Mapping[str, Any]]:
    """Return the entries of a list in the launcher's /status by index, for all indexes below `most`.

    An entry describes its `index` alone, or the range from `index` to `to`. Malformed entries and those not above the
    previous one are skipped, so the cost is proportional to the number of entries.
    """
    found: dict[int, Mapping[str, Any]] = {}
    free = 0
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(first := entry.get("index"), int):
            continue
        last = entry.get("to", first)
        if not isinstance(last, int) or not free <= first <= last:
            continue
        found.update(dict.fromkeys(range(first, min(last + 1, most)), entry))
        free = last + 1
    return found


class OtherStatusVersion(ValueError):
    """Error: the version of a launcher's /status is unknown to this operator. A later poll would not help."""


def _check_status_version(version: object) -> None:
    if version == contract.STATUS_VERSION and version is not True:
        return
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"the launcher's /status has version {shown(version)}; expected a whole number")
    newer = version > contract.STATUS_VERSION
    age, way_out = ("newer", "update the operator") if newer else ("older", "update the image")
    raise OtherStatusVersion(
        f"the launcher's /status has version {shown(version)}, but this operator supports only version "
        f"{contract.STATUS_VERSION}: ringtrain in the job's image is {age} than the operator; {way_out}"
    )


def _view_launcher_report(raw: Mapping[str, Any]) -> LauncherReport:
    if raw["phase"] not in ("Waiting", "Running", "Succeeded", "Failed"):
        raise ValueError(
            f"the launcher's /status has phase {raw['phase']!r}; expected Waiting, Running, Succeeded or Failed"
        )
    return LauncherReport(
        attempt=int(raw["attempt"]),
        phase=raw["phase"],
        world_size=int(raw["worldSize"]),
        progress=progress if isinstance(progress := raw.get("progress"), dict) else None,
        last_progress_time=_report_time(raw.get("lastProgressTime")),
        running_since=_report_time(raw.get("runningSince")),
        slowest=dict(raw["slowest"]) if raw.get("slowest") else None,
        workers=tuple(dict(worker) for worker in raw.get("workers") or ()),
        ranks=tuple(dict(rank) for rank in raw.get("ranks") or ()),
        logs=dict(raw.get("logs") or {}),
        elastic=elastic if isinstance(elastic := raw.get("elastic"), dict) else None,
        data=data if isinstance(data := raw.get("data"), dict) else None,
        start_time=_report_time(raw.get("startTime")),
        first_step_time=_report_time(raw.get("firstStepTime")),
    )


def _mounted_secret_name(spec: Mapping[str, Any]) -> str:
    """Return the name of the job's Secret that a pod mounts; empty if it mounts none."""
    volume: Mapping[str, Any] = next((v for v in spec.get("volumes") or () if v.get("name") == VOLUME_SECRET), {})
    return str((volume.get("secret") or {}).get("secretName") or "")


def _metadata_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    found = obj.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _pod_container_status(statuses: Iterable[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any]:
    return next((s for s in statuses or () if s.get("name") == name), {})


def _ended_state(container: Mapping[str, Any], state: Literal["state", "lastState"] = "state") -> Mapping[str, Any]:
    """Return the terminated state in the field `state` of a container's status; empty if there is none.

    The field "state" is about the container's present run, "lastState" about its run before the last restart.
    """
    found = (container.get(state) or {}).get("terminated")
    return found if isinstance(found, Mapping) else {}


def _started_state(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a container that runs or has ended; empty for a container that has not started."""
    state = container.get("state") or {}
    found = state.get("running") or state.get("terminated")
    return found if isinstance(found, Mapping) else {}


def _previous_end_with_message(main: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the end of the main container's previous run, if it left a termination message; otherwise empty."""
    ended = _ended_state(main, "lastState")
    try:
        message = json.loads(str(ended.get("message") or ""))
    except (ValueError, RecursionError):
        return {}
    return ended if isinstance(message, dict) and message.get("outcome") in ("Succeeded", "Failed") else {}


def _first_failed_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of a container that failed before the main one ran, such as an init container."""
    if status.get("phase") != "Failed":
        return {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((container for container in every if _ended_state(container).get("exitCode")), {})


def _other_container_name(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return a text such as `init container fetch` or `side container proxy`; empty if `container` is empty."""
    if not container:
        return ""
    initial = any(one.get("name") == container.get("name") for one in status.get("initContainerStatuses") or ())
    return f"{'init' if initial else 'side'} container {container.get('name')}"


def _side_failure(status: Mapping[str, Any], main: str) -> str:
    """Return a text about a side container that failed while the main one runs; empty if none did."""
    every = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    if "running" not in (_pod_container_status(every, main).get("state") or {}):
        return ""
    for container in every:
        runs = "running" in (container.get("state") or {})
        ended = _ended_state(container) or ({} if runs else _ended_state(container, "lastState"))
        if container.get("name") != main and ended.get("exitCode"):
            why = f" ({ended['reason']})" if ended.get("reason") not in (None, "", "Error") else ""
            return f"side container {container.get('name')} exited with {ended['exitCode']}{why}"
    return ""


def _have_all_ended(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether all containers of a pod have ended, also sidecars, and the kubelet restarts none."""
    containers = spec.get("containers") or ()
    if spec.get("restartPolicy") != "Never" or any(one.get("restartPolicyRules") for one in containers):
        return False
    main, initial = status.get("containerStatuses") or (), status.get("initContainerStatuses") or ()
    return len(main) == len(containers) > 0 and all(map(_ended_state, (*main, *initial)))


def _pod_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the pod's condition of this type; empty if it has none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def _pod_place(status: Mapping[str, Any], node: str, node_ready: bool | None) -> PodPlace:
    placing = _pod_condition(status, "PodScheduled")
    since = parse_time(placing.get("lastTransitionTime"))
    unschedulable = placing.get("status") == "False" and placing.get("reason") == "Unschedulable"
    return PodPlace(
        node, node_ready, since if unschedulable else None, since if placing.get("status") == "True" else None
    )


def _pod_wait(status: Mapping[str, Any], role: Role) -> PodReason:
    """Return why the pod does not run yet, as the kubelet or scheduler reports it; empty in a normal start."""
    placing = _pod_condition(status, "PodScheduled")
    if placing.get("status") == "False":
        message = str(placing.get("message") or "")
        return PodReason(str(placing.get("reason") or "Unschedulable"), message + _remedy(message, role))
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(group) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if str(waiting.get("reason") or "") not in _ORDINARY_WAITING:
                message = str(waiting.get("message") or "")
                return PodReason(str(waiting["reason"]), message + _remedy(message, role))
    return PodReason()


def _remedy(message: str, role: Role) -> str:
    """Return advice to append to a kubelet's message about runAsNonRoot; empty for other messages."""
    if "runAsNonRoot" not in message:
        return ""
    # A launcher without a user of its own gets the workers'.
    field = "worker" if role == contract.ROLE_LAUNCHER else _FIELDS.get(role, role)
    context = f"spec.{field}.template.spec.securityContext"
    return (
        f"; set {context}.runAsUser to the number of a user who can run the image, or, if the namespace's Pod "
        f"Security allows root, set {context}.runAsNonRoot to false"
    )


def _pod_disruption(status: Mapping[str, Any]) -> PodReason:
    """Return why Kubernetes removes the pod (condition DisruptionTarget); empty if it does not."""
    found = _pod_condition(status, "DisruptionTarget")
    if found.get("status") != "True":
        return PodReason()
    reason = str(found.get("reason") or "DisruptionTarget")
    return PodReason(reason, time=parse_time(found.get("lastTransitionTime")))


def _integer_or_zero(text: object) -> int:
    try:
        return int(str(text))
    except ValueError:
        return 0


def _report_time(seconds: object) -> datetime | None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return datetime.fromtimestamp(float(seconds), UTC) if is_number else None  # type: ignore[arg-type]


def storable_json(value: Any) -> Any:
    """Return JSON from a pod with values replaced that the API cannot store, so that a stored status reads the same.

    U+FFFD replaces lone surrogates; None replaces NaN, infinities and numbers beyond a float.
    """
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {storable_json(key): storable_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [storable_json(inner) for inner in value]
    return value if not isinstance(value, int | float) or is_finite_number(value) else None


def is_finite_number(value: float) -> bool:
    """Return whether `value` is a finite float, or an int that converts to one."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
