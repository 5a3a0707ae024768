"""Gang schedulers: which of them places an attempt's pods, the PodGroup that it is given, and what it says."""

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
    """A PodGroup of the job. `words`: why its gang finds no room, as its scheduler says it; empty: it does not."""

    ref: ObjectRef
    uid: str
    words: str = ""
    ending: bool = False


@dataclass(frozen=True)
class GangsView:
    """Gang schedulers, by their names in spec.scheduling.gang.

    `allowed`: schedulerName of each that the installation allows. `served`: of these, those whose API there is,
    and its version. `groups`: of the job.
    """

    allowed: Mapping[str, str] = field(default_factory=dict)
    served: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[GroupView, ...] = ()


@dataclass(frozen=True)
class GangChoice:
    """Who places all pods of an attempt or none; None: nobody. `problem`: why it is not whom the job asks for."""

    scheduler: Scheduler | None = None
    problem: str = ""


@dataclass(frozen=True)
class GangPlacement:
    """The pods of an attempt as a gang. `view`: None where nobody places pods, as on one machine."""

    attempt: PlacementAttempt
    view: GangsView | None

    @property
    def choice(self) -> GangChoice:
        """The gang scheduler that the spec, the installation and the cluster lead to."""
        job, view = self.attempt.job, self.view
        wanted = job.spec.scheduling.gang
        if view is None or wanted == "None":
            return GangChoice()
        if wanted == "Auto":
            # Kueue admits whole jobs: a second mechanism that holds pods back has to be asked for.
            return GangChoice() if job.queue else GangChoice(_first_served(job, view))
        if wanted not in view.allowed:
            way_out = f"set gangs.{wanted.lower()} in the operator's chart, or choose Auto"
            return GangChoice(problem=f"scheduling.gang is {wanted}, which this installation does not allow: {way_out}")
        if wanted not in view.served:
            api = SCHEDULERS[wanted]
            kinds = f"PodGroups of {api.api_group} ({' or '.join(api.versions)})"
            missing = f"the API server has no {kinds}: install it, or choose Auto"
            return GangChoice(problem=f"scheduling.gang is {wanted}, and {missing}")
        return GangChoice(wanted)

    @property
    def problem(self) -> str:
        """Why the pods are not made: nobody is there who would place them as the job asks."""
        return self.choice.problem if self.attempt.is_open else ""

    @property
    def holds(self) -> bool:
        """Whether the pods are not to be made yet."""
        return bool(self.problem)

    def waits_for(self) -> PlacementWait | None:
        """Why the scheduler finds no room: in its group's words and in a pod's. No pod's name: they take turns."""
        scheduler, said = self.attempt.scheduler, self.attempt.unplaced
        if scheduler is None or self.view is None or said is None:
            return None
        name = self.attempt.name
        of_group = next((group.words for group in self.view.groups if group.ref.name == name), "")
        # What a scheduler says of nodes tells more than that a pod waits for the others of its group.
        telling = sorted(said, key=lambda words: ("nodes are available" not in words, words))
        words = "; ".join(filter(None, (of_group, *telling[:1])))
        return PlacementWait("Unschedulable", f"PodGroup {name} ({scheduler}): {words}") if words else None

    def wakes(self) -> tuple[datetime, ...]:
        """When to look again for a gang scheduler that is not there."""
        return (self.attempt.next_look,) if self.problem else ()

    def missing(self) -> tuple[Json, ...]:
        """The attempt's group, if it is not there: made before the pods."""
        view, scheduler = self.view, self.attempt.scheduler
        if view is None or scheduler is None or scheduler not in view.served:
            return ()
        version = view.served[scheduler]
        if any((group.ref.name, group.ref.api_version) == (self.attempt.name, version) for group in view.groups):
            return ()
        return (self._group(scheduler, version),)

    def marked(self, pod: Json) -> Json:
        """The pod as one of its attempt's group, if there is one, for its scheduler or the template's."""
        if self.attempt.scheduler is None:
            return pod
        scheduler = SCHEDULERS[self.attempt.scheduler]
        scheduler.join(pod, self.attempt.name)
        allowed = self.view.allowed.get(self.attempt.scheduler, "") if self.view is not None else ""
        who = _named_in_template(self.attempt.job) or allowed or scheduler.scheduler_name
        if who and not pod["spec"].get("schedulerName"):
            pod["spec"]["schedulerName"] = who
        return pod

    def unwanted(self) -> Iterator[tuple[ObjectRef, str]]:
        """Groups of attempts that are over, of a job that has ended, and of one that is to have no pods."""
        for group in self.view.groups if self.view is not None else ():
            if not group.ending and not self._is_present(group.ref):
                yield group.ref, group.uid

    def _group(self, scheduler: str, api_version: str) -> Json:
        """The attempt's PodGroup, as gang scheduler `scheduler` knows it in `api_version`."""
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
        """Whether it is the group of pods that there are, or are to be."""
        scheduler = self.attempt.scheduler
        if self.attempt.is_over or scheduler is None or group.name != self.attempt.name:
            return False
        return group.api_version.startswith(f"{SCHEDULERS[scheduler].api_group}/")


def view_group(group: Mapping[str, Any], api_version: str) -> GroupView:
    """What `plan` needs of a PodGroup of ours, read in `api_version`."""
    meta, status = group["metadata"], group.get("status") or {}
    said = (c for c in status.get("conditions") or () if (c.get("type"), c.get("status")) in _NO_ROOM)
    words = (c.get("message") or c.get("reason") for c in said)
    return GroupView(
        ref=ObjectRef("PodGroup", str(meta["name"]), api_version),
        uid=str(meta.get("uid") or ""),
        words=str(next(words, "") or ""),
        ending="deletionTimestamp" in meta,
    )


def _named_in_template(job: Job) -> str:
    """schedulerName of the worker's template; empty: it names none."""
    return str((job.spec.worker.template.get("spec") or {}).get("schedulerName") or "")


def _first_served(job: Job, view: GangsView) -> Scheduler | None:
    """The first that is there and places pods under the name that the template has, if it has one."""
    named = _named_in_template(job)
    in_order: tuple[Scheduler, ...] = ("Kubernetes", "Coscheduling", "Volcano")
    there = (one for one in in_order if one in view.served)
    return next((one for one in there if named in ("", view.allowed[one] or DEFAULT_SCHEDULER)), None)
