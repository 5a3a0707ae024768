"""Gang scheduling of an attempt: the choice of a scheduler, its PodGroup, and its messages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ..build import names
from ..build.names import ObjectRef
from ..spec.job import Job
from .base import GangScheduler, Json, PlacedGang, PlacementAttempt, PlacementWait
from .coscheduling import COSCHEDULING
from .kubernetes import KUBERNETES
from .volcano import VOLCANO

Scheduler = Literal["Kubernetes", "Coscheduling", "Volcano"]
# By their names in spec.scheduling.gang.
SCHEDULERS: Mapping[str, GangScheduler] = {
    "Kubernetes": KUBERNETES,
    "Coscheduling": COSCHEDULING,
    "Volcano": VOLCANO,
}
DEFAULT_SCHEDULER = "default-scheduler"
_NO_ROOM = {scheduler.no_room for scheduler in SCHEDULERS.values()}


@dataclass(frozen=True)
class GroupView:
    """A PodGroup of the job. `words`: the scheduler's message if the gang does not fit, otherwise empty."""

    ref: ObjectRef
    uid: str
    words: str = ""
    ending: bool = False


@dataclass(frozen=True)
class GangsView:
    """Gang schedulers in this cluster, by their names in spec.scheduling.gang, and the job's PodGroups.

    `allowed`: schedulerName of each scheduler that the installation allows. `served`: API version of each scheduler
    whose API the cluster serves. `groups`: the job's PodGroups.
    """

    allowed: Mapping[str, str] = field(default_factory=dict)
    served: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[GroupView, ...] = ()


@dataclass(frozen=True)
class GangChoice:
    """Gang scheduler chosen for an attempt, or None. `problem`: why the requested one is unavailable."""

    scheduler: Scheduler | None = None
    problem: str = ""


@dataclass(frozen=True)
class GangPlacement:
    """Placement of an attempt by a gang scheduler. `view`: None outside a cluster."""

    attempt: PlacementAttempt
    view: GangsView | None

    @property
    def choice(self) -> GangChoice:
        """Gang scheduler that the spec, the installation and the cluster determine for this attempt."""
        job, view = self.attempt.job, self.view
        wanted = job.spec.scheduling.gang
        if view is None or wanted == "None":
            return GangChoice()
        if wanted == "Auto":
            # Kueue admits whole jobs, so a second mechanism that withholds pods must be requested explicitly.
            return GangChoice() if job.queue else GangChoice(_first_served_scheduler(job, view))
        if wanted not in view.allowed:
            remedy = f"set gangs.{wanted.lower()} in the operator's chart, or choose Auto"
            return GangChoice(problem=f"scheduling.gang is {wanted}, but this installation does not allow it: {remedy}")
        if wanted not in view.served:
            api = SCHEDULERS[wanted]
            kinds = f"PodGroups of {api.api_group} ({' or '.join(api.versions)})"
            missing = f"the API server has no {kinds}: install it, or choose Auto"
            return GangChoice(problem=f"scheduling.gang is {wanted}, but {missing}")
        return GangChoice(wanted)

    @property
    def problem(self) -> str:
        """Reason why pods must not be created: the requested scheduler is unavailable. Otherwise empty."""
        return self.choice.problem if self.attempt.is_open else ""

    @property
    def holds(self) -> bool:
        """Whether the pods must not be created yet."""
        return bool(self.problem)

    def waits_for(self) -> PlacementWait | None:
        """Return why the gang does not fit on nodes, from its PodGroup's and one pod's messages; None if it fits."""
        scheduler, messages = self.attempt.scheduler, self.attempt.unplaced
        if scheduler is None or self.view is None or messages is None:
            return None
        name = self.attempt.name
        of_group = next((group.words for group in self.view.groups if group.ref.name == name), "")
        # A message about nodes is more useful than one about waiting for the rest of the group.
        telling = sorted(messages, key=lambda words: ("nodes are available" not in words, words))
        words = "; ".join(filter(None, (of_group, *telling[:1])))
        return PlacementWait("Unschedulable", f"PodGroup {name} ({scheduler}): {words}") if words else None

    def requeue_times(self) -> tuple[datetime, ...]:
        """Return the time of the next check if the requested gang scheduler is unavailable."""
        return (self.attempt.next_check,) if self.problem else ()

    def missing(self) -> tuple[Json, ...]:
        """Return the attempt's PodGroup if it must be created, which happens before its pods."""
        view, scheduler = self.view, self.attempt.scheduler
        if view is None or scheduler is None or scheduler not in view.served:
            return ()
        version = view.served[scheduler]
        if any((group.ref.name, group.ref.api_version) == (self.attempt.name, version) for group in view.groups):
            return ()
        return (self._group(scheduler, version),)

    def marked(self, pod: Json) -> Json:
        """Return the pod with the name of its PodGroup, if the attempt has one, and with a schedulerName."""
        if self.attempt.scheduler is None:
            return pod
        scheduler = SCHEDULERS[self.attempt.scheduler]
        scheduler.join(pod, self.attempt.name)
        allowed = self.view.allowed.get(self.attempt.scheduler, "") if self.view is not None else ""
        who = _template_scheduler_name(self.attempt.job) or allowed or scheduler.scheduler_name
        if who and not pod["spec"].get("schedulerName"):
            pod["spec"]["schedulerName"] = who
        return pod

    def unwanted(self) -> Iterator[tuple[ObjectRef, str]]:
        """Yield the PodGroups to delete, each with its uid: those of earlier attempts or another scheduler, and those
        of a job that must have no pods."""
        for group in self.view.groups if self.view is not None else ():
            if not group.ending and not self._is_present(group.ref):
                yield group.ref, group.uid

    def _group(self, scheduler: str, api_version: str) -> Json:
        """Return a PodGroup for the attempt, in `api_version` of the gang scheduler `scheduler`."""
        job, wanted = self.attempt.job, self.attempt.job.spec.scheduling
        template = (job.spec.worker.template.get("spec") or {}).get("priorityClassName")
        gang = PlacedGang(
            name=self.attempt.name,
            min_pods=self.attempt.needed + 1,
            queue=job.volcano_queue,
            priority_class=template or wanted.priority_class_name or "",
            topology=wanted.topology,
        )
        return {
            "apiVersion": api_version,
            "kind": "PodGroup",
            "metadata": names.metadata(job, gang.name, names.job_labels(job)),
            "spec": SCHEDULERS[scheduler].spec(gang),
        }

    def _is_present(self, group: ObjectRef) -> bool:
        """Return whether `group` is the PodGroup of the current attempt. Returns False if the attempt is over."""
        scheduler = self.attempt.scheduler
        if self.attempt.is_over or scheduler is None or group.name != self.attempt.name:
            return False
        return group.api_version.startswith(f"{SCHEDULERS[scheduler].api_group}/")


def view_group(group: Mapping[str, Any], api_version: str) -> GroupView:
    """Parse a PodGroup of the job. `api_version`: version in which it was read."""
    meta, status = group["metadata"], group.get("status") or {}
    conditions = (c for c in status.get("conditions") or () if (c.get("type"), c.get("status")) in _NO_ROOM)
    words = (c.get("message") or c.get("reason") for c in conditions)
    return GroupView(
        ref=ObjectRef("PodGroup", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        words=str(next(words, "") or ""),
        ending="deletionTimestamp" in meta,
    )


def _template_scheduler_name(job: Job) -> str:
    """Return the schedulerName of the worker's template; empty if it has none."""
    return str((job.spec.worker.template.get("spec") or {}).get("schedulerName") or "")


def _first_served_scheduler(job: Job, view: GangsView) -> Scheduler | None:
    """Return the first available gang scheduler that the schedulerName in the worker's template permits."""
    named = _template_scheduler_name(job)
    in_order: tuple[Scheduler, ...] = ("Kubernetes", "Coscheduling", "Volcano")
    there = (one for one in in_order if one in view.served)
    return next((one for one in there if named in ("", view.allowed[one] or DEFAULT_SCHEDULER)), None)
