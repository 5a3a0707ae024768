"""Chain of causes of a job's state: from the job's own conditions down to the root cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import ApiError, Forbidden
from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, PODS
from ringtrain_operator.cluster.templates import read_named_template
from ringtrain_operator.errors import Invalid, counted
from ringtrain_operator.observe.pods import main_container, pull_of, view_pod
from ringtrain_operator.spec.job import is_ours
from ringtrain_operator.status.ledger import EndedPod, Incarnations
from ringtrain_operator.status.model import format_time, parse_status
from ringtrain_operator.status.progress import last_started, start_durations, start_status
from ringtrain_operator.workers.incarnations import avoidance_text, avoided_nodes

from ..local.wording import shown_state
from .following import ENDED, state_of
from .queue_place import queue_place_text
from .session import ClusterAccess, Json

EVENTS_SHOWN = 3
AGENTS_ASKED = 3
LOSSES_SHOWN = 3
PODS_SHOWN = 10


async def read_causes(session: ClusterAccess, name: str) -> list[str]:
    """Return the lines that explain the state of a job on a cluster. Raises NotFound if the job does not exist."""
    job = await session.api.get(JOBS, session.namespace, name)
    pods = await session.api.select(PODS, session.namespace, labels=f"{contract.LABEL_JOB}={name}")
    uids = {o["metadata"]["uid"] for o in (job, *pods)}
    events = await session.api.select(EVENTS, session.namespace)
    about_it = [e for e in events if e.get("involvedObject", {}).get("uid") in uids]
    unreached = await _unreached_launcher_lines(session, job, pods)
    lines = list(explain_job(job, pods, about_it, unreached, await queue_place_text(session, job)))
    return [*lines, *await _template_causes(session, job)]


async def _template_causes(session: ClusterAccess, job: Json) -> list[str]:
    """Return a line if the job's template was changed or deleted since the job was accepted; otherwise an empty list.

    The list is empty once the job has ended.
    """
    accepted = (job.get("status") or {}).get("template")
    if not accepted or state_of(job) in ENDED:
        return []
    try:
        found = await read_named_template(session.api, job["metadata"]["namespace"], accepted["kind"], accepted["name"])
        change = "" if found.hash == accepted["hash"] else "has changed"
    except Invalid as exc:
        change = "" if isinstance(exc.__cause__, Forbidden) else "was deleted, or is no template any more"
    if not change:
        return []
    stays = (
        f"the job uses the version of its acceptance ({accepted['hash']}); delete and create the job to use the new one"
    )
    return [f"  {accepted['kind']} {accepted['name']} {change} since: {stays}"]


async def _unreached_launcher_lines(session: ClusterAccess, job: Json, pods: list[Json]) -> list[str]:
    """Return the agents' last log lines that report an unreachable launcher, if the job waits for agents or the
    launcher."""
    running = _job_condition(job.get("status") or {}, "Running")
    if running.get("reason") not in ("WaitingForAgents", "WaitingForLauncher"):
        return []
    views = [view for view in map(view_pod, pods) if view.id.role == "worker" and view.phase == "Running"]
    # First the workers that the condition names.
    views.sort(key=lambda view: (view.id.name not in str(running.get("message")), view.id.index))
    agents = {pod["metadata"]["name"]: str(main_container(pod)["name"]) for pod in pods}
    found = []
    for view in views[:AGENTS_ASKED]:
        last, api = b"", session.api
        with suppress(ApiError):  # without the right to read logs, the other causes are still reported
            log = api.pod_log(session.namespace, view.id.name, container=agents[view.id.name], tail_lines=1)
            async with aclosing(log) as lines:
                async for line in lines:
                    last = line
        last_line = last.decode(errors="replace").strip()
        if "has not been reached" in last_line:
            found.append(f"pod {view.id.name}: {last_line}")
    return found


def _job_condition(status: Json, kind: str) -> Json:
    """Return the condition of type `kind`, or an empty dict."""
    found: Json = next((c for c in status.get("conditions") or [] if c["type"] == kind), {})
    return found


def explain_job(
    job: Json, pods: list[Json], events: list[Json], unreached: Sequence[str] = (), place: str = ""
) -> Iterator[str]:
    """Yield the causes of the job's state, one per line: first the job's own message, last the root cause.

    `unreached`: lines of agents that cannot reach the launcher. `place`: the job's place in its queue.
    """
    status = job.get("status") or {}
    name, state = job["metadata"]["name"], status.get("state")
    if not state:
        yield f"{name} has no status yet: no operator has processed it"
        yield from _unseen_job_causes(job)
        return
    yield f"{name} is {shown_state(state, status.get('reason'))}"
    conditions = list(_condition_causes(status))
    yield from (f"  {line}" for line in conditions)
    if place:
        yield f"    {place}"
    told = "".join(conditions)
    of_pods = list(_pod_causes(pods, told))
    yield from (f"    {line}" for line in (*_limited_pod_lines(of_pods), *unreached))
    if started := (status.get("progress") or {}).get("startedFrom"):
        yield f"  training last continued from {started}"
    wrong = (status.get("progress") or {}).get("notFinite")
    if wrong and (status.get("failure") or {}).get("reason") != "NotFinite":
        yield f"  {wrong}"
    yield from (
        f"  {line}"
        for line in (*_start_causes(status, pods, events), *_loss_causes(status), *_auxiliary_pod_causes(status))
    )
    yield from _failure_cause(status, told)
    if status.get("failure") or status.get("restarts") or status.get("disruptions"):
        yield f"  restarts: {status.get('restarts', 0)} counted, {counted(status.get('disruptions', 0), 'disruption')}"
    yield from (f"  {line}" for line in _warning_causes(_present_events(status, events), told + "".join(of_pods)))


def _start_causes(status: Json, pods: list[Json], events: list[Json]) -> Iterator[str]:
    """Yield a line with the duration of each phase of the current attempt's start, as far as they are known."""
    parsed = parse_status({name: status[name] for name in ("attempt", "start", "ledger") if name in status})
    start = parsed.start
    if start is None or start.attempt != parsed.attempt:
        views = [view for view in map(view_pod, pods) if view.id.attempt == parsed.attempt]
        if (last := last_started(views)) is not None:
            about = [e for e in events if (e.get("involvedObject") or {}).get("uid") == last.id.uid]
            pulled = last.with_pull(*pull_of(about, last.main.name))
            views = [pulled if view is last else view for view in views]
        start = start_status(parsed, views)
    parts = ", ".join(f"{name} {seconds:g} s" for name, seconds in start_durations(start))
    if parts:
        where = f" (the last pod to start was {start.pod}" + (f" on {start.node})" if start.node else ")")
        is_over = start.first_step or status.get("state") in ENDED
        yield f"start{'' if is_over else ' so far'}: {parts}{where if start.pod else ''}"


def _unseen_job_causes(job: Json) -> Iterator[str]:
    """Yield possible reasons for a job that has no status."""
    owner = job["spec"].get("managedBy")
    if not is_ours(owner):
        yield f"  spec.managedBy is {owner!r}: that controller manages the job, not the operator"
    else:
        yield "  is the operator running, and does it serve this namespace? See"
        yield "  kubectl get pods --all-namespaces --selector app.kubernetes.io/name=ringtrain-operator"


def _condition_causes(status: Json) -> Iterator[str]:
    """Yield a line for each of the job's conditions that reports a problem, and for the warning of a success."""
    bad = {"Accepted": "False", "Suspended": "True", "Failed": "True", "Restarting": "True", "Running": "False"}
    bad["Degraded"] = bad["Queued"] = bad["InputStalled"] = bad["LogsNotShipped"] = "True"
    conditions = status.get("conditions") or []
    said = {c.get("message") for c in conditions if c["type"] != "Running" and bad.get(c["type"]) == c["status"]}
    for condition in conditions:
        repeated = condition["type"] == "Running" and (
            condition.get("reason") in ("Suspended", "WaitingForQueue") or condition.get("message") in said
        )
        matters = not repeated and condition.get("reason") != "Finished"
        limps = condition["type"] == "Running" and condition.get("reason") == "SideContainerFailed"
        if limps or (bad.get(condition["type"]) == condition["status"] and matters):
            message = condition.get("message") or ""
            yield f"{condition['type']}={condition['status']} since {condition['lastTransitionTime']}: " + (
                f"{condition['reason']}: {message}" if message else condition["reason"]
            )
        elif condition["type"] == "Succeeded" and "; " in (condition.get("message") or ""):
            yield f"warning: {condition['message'].partition('; ')[2]}"


def _limited_pod_lines(pods: list[str]) -> list[str]:
    """Return the first PODS_SHOWN lines of `pods` and a line that counts the rest, which may be a thousand pods."""
    more = len(pods) - PODS_SHOWN
    return [*pods[:PODS_SHOWN], f"and {counted(more, 'more pod')} like these"] if more > 1 else pods


def _pod_causes(pods: list[Json], told: str) -> Iterator[str]:
    """Yield a line for each pod with a problem that `told` does not contain. Pods that only wait to be scheduled come
    last."""
    views = sorted(map(view_pod, pods), key=lambda pod: pod.phase == "Pending" and not pod.wait.reason)
    for pod in views:  # those that only wait for a place come last
        if pod.wait.reason:
            if not pod.wait.message or pod.wait.message not in told:
                yield f"pod {pod.id.name}: {pod.wait.reason}: {pod.wait.message}"
        elif pod.disrupted.reason:
            yield f"pod {pod.id.name} was evicted: {pod.disrupted.reason}"
        elif pod.deletion_time:
            yield f"pod {pod.id.name} on {pod.place.node or 'no node'} is ending"
        elif pod.phase == "Failed" and not re.search(rf"(?<![\w-]){re.escape(pod.id.name)}(?![\w-])", told):
            yield f"pod {pod.id.name} on {pod.place.node}: exit code {pod.end.code} {pod.end.reason}".rstrip()
        elif pod.end.side_failure:
            yield f"pod {pod.id.name} on {pod.place.node}: {pod.end.side_failure}, and its main container runs on"
        elif pod.phase == "Pending":
            yield f"pod {pod.id.name} is Pending" + (
                f" on {pod.place.node}" if pod.place.node else ", not scheduled yet"
            )


def _failure_cause(status: Json, conditions: str) -> Iterator[str]:
    """Yield lines about the last failure. Its message is omitted if the user has already seen it in `conditions`."""
    failure = status.get("failure")
    if not failure:
        return
    where = " on ".join(str(failure[k]) for k in ("pod", "node") if failure.get(k))
    message = failure.get("message") or ""
    text = failure["reason"] + (f": {message}" if message not in conditions else "") + (f" in {where}" if where else "")
    yield f"  last failure (attempt {failure['attempt']}): {text}"
    yield from (f"    | {line}" for line in failure.get("logTail") or ())


def _loss_causes(status: Json) -> Iterator[str]:
    """Yield lines about workers that an elastic job lost without a restart, and about nodes that it avoids."""
    world = status.get("elastic") or {}
    if world.get("lostWorkers"):
        recoveries, seconds = world.get("recoveries"), world.get("lastRecoverySeconds")
        recovered = f"; recovered from {counted(recoveries, 'interruption')}" if recoveries else ""
        took = f", the last within {seconds:g} s" if recoveries and seconds is not None else ""
        yield (
            f"{counted(world['lostWorkers'], 'worker')} lost, {counted(world.get('lostSteps', 0), 'step')} "
            f"repeated{recovered}{took}"
        )
    losses = Incarnations.model_validate((status.get("ledger") or {}).get("incarnations") or {}).losses
    for loss in losses[-LOSSES_SHOWN:]:
        node = f" on node {loss.node}" if loss.node else ""
        yield f"{format_time(loss.time)} {loss.pod} (incarnation {loss.incarnation}){node} {loss.cause}"
    for node in avoided_nodes(losses, datetime.now(UTC)):
        yield f"{avoidance_text(losses, node)}; new pods avoid it"


def _auxiliary_pod_causes(status: Json) -> Iterator[str]:
    """Yield lines about the time that ranks wait for input, about ended data workers, and about the evaluator."""
    data, evaluator = status.get("dataWorkers") or {}, status.get("evaluator") or {}
    waited = data.get("waitFraction")
    if waited:
        served = f"{data.get('ready', 0)} of {counted(data.get('desired', 0), 'data worker')} ready"
        yield f"ranks wait for input {round(100 * waited)} % of their time; {served}"
    notes = [EndedPod.model_validate(note) for note in (status.get("ledger") or {}).get("endedPods") or ()]
    for note in sorted(notes, key=lambda note: note.time)[-LOSSES_SHOWN:]:
        node = f" on node {note.node}" if note.node else ""
        yield f"{format_time(note.time)} {note.pod}{node} {note.cause}"
    message = evaluator.get("message")
    if message and not any(message == f"{note.pod} {note.cause}" for note in notes):
        yield f"the evaluator is {evaluator.get('state')}: {message}"
    if evaluator.get("failures"):
        yield f"the evaluator failed {counted(evaluator['failures'], 'time')}; the job does not fail because of it"


def _present_events(status: Json, events: list[Json]) -> list[Json]:
    """Return the events that may explain the present state: after the start of the ranks only later ones, and after the
    job's end those of the failed pod."""
    if status.get("state") in ENDED:
        pod = (status.get("failure") or {}).get("pod")
        return [event for event in events if pod and event["involvedObject"].get("name") == pod]
    running = _job_condition(status, "Running")
    since = str(running.get("lastTransitionTime")) if running.get("status") == "True" else ""
    return [event for event in events if _event_time(event) >= since]


def _event_time(event: Json) -> str:
    """Return the time at which an event was last seen; empty if it has none."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _warning_causes(events: list[Json], told: str) -> Iterator[str]:
    """Yield a line for each of the newest warnings among `events` whose message `told` does not contain."""
    warnings = [e for e in events if e.get("type") == "Warning" and str(e.get("message")) not in told]
    newest = {str(event.get("message")): event for event in sorted(warnings, key=_event_time)}
    for event in sorted(newest.values(), key=_event_time)[-EVENTS_SHOWN:]:
        about = event["involvedObject"]
        yield f"event on {about.get('kind')} {about.get('name')}: {event.get('reason')}: {event.get('message')}"
