"""Parse the API's dicts into `PodView`, and a launcher's /status into `LauncherReport`."""

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
    """Return the container that has the operator's variables. Admission webhooks may insert others before it."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    ours = (c for c in containers if any(e.get("name") == contract.ENV_ROLE for e in c.get("env") or ()))
    return next(ours, containers[0])


def view_pod(pod: Mapping[str, Any], nodes: Mapping[str, bool] | None = None) -> PodView:
    """Parse one of the job's pods. `nodes`: readiness by node name, if known."""
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
    """Return the pod's termination message as a dict; empty if the pod has no message, or the message belongs to
    another attempt."""
    try:
        message = storable_json(json.loads(pod.end.message))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(message, dict) or message.get("version") != contract.TERMINATION_MESSAGE_VERSION:
        return {}
    return message if message.get("attempt") == attempt else {}


def failure_in(pod: PodView, attempt: int) -> dict[str, Any]:
    """Return the failure in the pod's termination message; empty if the message has no failure."""
    failure = termination_of(pod, attempt).get("failure")
    return failure if isinstance(failure, dict) else {}


def status_token(pod: Mapping[str, Any]) -> str:
    """Return the token that a launcher's /status requires, from its pod's environment; empty if absent."""
    variables = {e.get("name"): e.get("value") for e in main_container(pod).get("env") or ()}
    return str(variables.get(contract.ENV_STATUS_TOKEN) or "")


def page_token(secret: str) -> str:
    """Derive the token of a launcher's page from `secret`, the token of its /status (docs/contract.md)."""
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


def read_report(raw: Mapping[str, Any]) -> LauncherReport:
    """Parse the launcher's /status.

    Raises OtherStatusVersion if it has another version of the contract, ValueError if it is not a /status.
    """
    try:
        _check_status_version(raw["version"])
        return _view_launcher_report(storable_json(raw))
    except (KeyError, TypeError, OverflowError, OSError, RecursionError) as exc:
        raise ValueError(f"launcher /status: {exc!r}") from exc


def by_index(entries: Iterable[object], most: int) -> dict[int, Mapping[str, Any]]:
    """Expand a list of the launcher's /status into the entry of each index below `most`.

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
    """The launcher's /status has a version that this operator cannot read. It stays so until the
    launcher is replaced.
    """


def _check_status_version(version: object) -> None:
    if version == contract.STATUS_VERSION and version is not True:
        return
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"launcher /status: version is {shown(version)}, expected a whole number")
    newer = version > contract.STATUS_VERSION
    age, way_out = ("newer", "update the operator") if newer else ("older", "update the image")
    raise OtherStatusVersion(
        f"the launcher's /status has version {shown(version)} and this operator reads version "
        f"{contract.STATUS_VERSION}: ringtrain in the job's image is {age} than the operator; {way_out}"
    )


def _view_launcher_report(raw: Mapping[str, Any]) -> LauncherReport:
    if raw["phase"] not in ("Waiting", "Running", "Succeeded", "Failed"):
        raise ValueError(f"launcher /status: phase is {raw['phase']!r}, expected Waiting, Running, Succeeded or Failed")
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
    """Return the terminated state of a container. `lastState` is the state of the container's previous run, if the
    container was restarted."""
    found = (container.get(state) or {}).get("terminated")
    return found if isinstance(found, Mapping) else {}


def _started_state(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a container that runs or has ended; empty for one that waits."""
    state = container.get("state") or {}
    found = state.get("running") or state.get("terminated")
    return found if isinstance(found, Mapping) else {}


def _previous_end_with_message(main: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the previous terminated state of a restarted main container if it left a termination
    message; else empty.
    """
    ended = _ended_state(main, "lastState")
    try:
        message = json.loads(str(ended.get("message") or ""))
    except (ValueError, RecursionError):
        return {}
    return ended if isinstance(message, dict) and message.get("outcome") in ("Succeeded", "Failed") else {}


def _first_failed_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the container that failed although the main one did not run, such as an init container."""
    if status.get("phase") != "Failed":
        return {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((container for container in every if _ended_state(container).get("exitCode")), {})


def _other_container_name(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return `init container fetch` or `side container proxy`; empty without a container."""
    if not container:
        return ""
    initial = any(one.get("name") == container.get("name") for one in status.get("initContainerStatuses") or ())
    return f"{'init' if initial else 'side'} container {container.get('name')}"


def _side_failure(status: Mapping[str, Any], main: str) -> str:
    """Return the failure of a side container while the main one runs; empty without one."""
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
    """Return the reason why the pod does not run yet, in the kubelet's or scheduler's words; empty in a
    normal start.
    """
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
    """Return a remedy to append to a kubelet's message about runAsNonRoot; empty for any other message."""
    if "runAsNonRoot" not in message:
        return ""
    context = f"spec.{_FIELDS.get(role, role)}.template.spec.securityContext"
    return (
        f"; set {context}.runAsUser to the number of a user who can run the image, or, if the namespace's Pod "
        f"Security allows root, set {context}.runAsNonRoot to false"
    )


def _pod_disruption(status: Mapping[str, Any]) -> PodReason:
    """Return the reason of the condition DisruptionTarget, with which Kubernetes removes a pod; empty without one."""
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
    """Return JSON from a pod with values that the API cannot store replaced. Otherwise each read status would differ.

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
