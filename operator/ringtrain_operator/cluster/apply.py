"""Carry out a plan: delete and create in parallel, and say what the API would not have."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from ringtrain_operator.cluster.api import (
    PODS,
    SECRETS,
    AlreadyExists,
    ApiClient,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Resource,
    resource_of,
)
from ringtrain_operator.cluster.observe import Memory, find_owner
from ringtrain_operator.observe import Foreign, ObjectRef, Refusal
from ringtrain_operator.plan import Deletion, Plan

log = logging.getLogger(__name__)

Outcome = Refusal | Foreign | None


async def apply_plan(api: ApiClient, job: Mapping[str, Any], plan: Plan, memory: Memory) -> bool:
    """Do what `plan` says besides the status; returns whether another look is due at once.

    What the API refuses for a reason (quota, admission, a template that breaks a rule) is kept in `memory` for the
    next plan to report. Faults of the API itself are raised, after everything was tried.
    """
    namespace = job["metadata"]["namespace"]
    pods = [obj for obj in plan.create if obj["kind"] == PODS.kind]
    others = [obj for obj in plan.create if obj["kind"] != PODS.kind]
    outcomes = await _together(
        *(_delete(api, namespace, deletion, memory) for deletion in plan.delete),
        *(_create(api, job, obj, memory) for obj in others),
    )
    # Admission refuses a pod whose ServiceAccount is not there yet, so pods come second; and none comes where
    # another's object is in the way.
    if not any(isinstance(outcome, Foreign) for outcome in outcomes):
        if others:
            memory.looked_at = time.monotonic()  # what was just made need not be read
        outcomes += await _together(*(_create(api, job, obj, memory) for obj in pods))
    refusals = tuple(o for o in outcomes if isinstance(o, Refusal))
    surprised = any(isinstance(o, Foreign) for o in outcomes) or refusals != memory.refusals
    memory.refusals = refusals
    return surprised


async def _together(*requests: Coroutine[Any, Any, Outcome]) -> list[Outcome]:
    """What became of each request; when one failed, its error, after all others have ended."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _create(api: ApiClient, job: Mapping[str, Any], obj: Mapping[str, Any], memory: Memory) -> Outcome:
    resource, ref = resource_of(obj), ObjectRef(obj["kind"], obj["metadata"]["name"])
    try:
        await api.create_unread(resource, job["metadata"]["namespace"], obj)
    except AlreadyExists:
        return await _explain_taken(api, job, resource, ref, memory)
    except (Forbidden, Invalid, NotFound) as refused:
        log.info("%s was refused: %s", ref, refused, extra={"job": _key(job)})
        return Refusal(ref, refused.code, refused.reason, refused.message)
    if resource is not PODS:
        memory.owned.add(ref)
    return None


async def _explain_taken(
    api: ApiClient, job: Mapping[str, Any], resource: Resource, ref: ObjectRef, memory: Memory
) -> Foreign | None:
    """A name that is taken is ours (an earlier creation whose answer was lost), or somebody else's."""
    # A Secret's name holds the job's uid, so only the job itself can have taken it: there is no need to read it.
    found = ref if resource is SECRETS else await find_owner(api, job, resource, ref.name)
    if isinstance(found, Foreign):
        memory.foreign[ref] = found
        return found
    if found is not None and resource is not PODS:
        memory.owned.add(ref)
        memory.foreign.pop(ref, None)
    return None


async def _delete(api: ApiClient, namespace: str, deletion: Deletion, memory: Memory) -> None:
    resource = resource_of({"apiVersion": _VERSIONS.get(deletion.ref.kind, "v1"), "kind": deletion.ref.kind})
    try:
        await api.delete(resource, namespace, deletion.ref.name, uid=deletion.uid, grace_period_s=deletion.grace_s)
    except (NotFound, Conflict) as gone:
        # gone, or replaced by another of its name: either way the one that was meant is no more
        log.debug("%s was not there to delete: %s", deletion.ref, gone)
    memory.owned.discard(deletion.ref)


_VERSIONS = {"NetworkPolicy": "networking.k8s.io/v1", "DistributedTrainingJob": "ringtrain.dev/v1alpha1"}


def _key(job: Mapping[str, Any]) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
