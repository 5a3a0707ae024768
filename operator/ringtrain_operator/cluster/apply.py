"""Carry out a plan: delete and create in parallel, and say what the API would not have."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from ..build import added_pull_secrets
from ..build.names import ObjectRef
from ..observe.model import Foreign, Refusal
from ..plan import Plan, PlannedDeletion
from .admission import create_admitted
from .api.errors import AlreadyExists, Conflict, Forbidden, NotFound, ServerError, Unprocessable
from .api.resources import PODS, SECRETS, SERVICE_ACCOUNTS, ApiResource, resource_of
from .memory import ReconcileMemory
from .observe import find_owner
from .queue import JobKey
from .versions import ResourceVersions

log = logging.getLogger(__name__)

# These name others, which have to be there first.
LAST_KINDS = (PODS.kind, "ProvisioningRequest")
# So the API server says that it could not ask an admission webhook, which may be so for ever. Nothing was stored.
_WEBHOOK_FAILED = "failed calling webhook"
Outcome = Refusal | Foreign | None


@dataclass
class _ReconciledJob:
    """The job that is worked on, and whom to tell what was done. `secured`: fields of the restricted standard without
    which its namespace has refused a pod."""

    versions: ResourceVersions
    job: Mapping[str, Any]
    memory: ReconcileMemory
    secured: frozenset[str] = frozenset()

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])


async def apply_plan(versions: ResourceVersions, job: Mapping[str, Any], plan: Plan, memory: ReconcileMemory) -> bool:
    """Do what `plan` says besides the status; returns whether another look is due at once.

    What the API refuses for a reason (quota, admission, a template that breaks a rule) is kept in `memory` for the
    next plan to report. Faults of the API itself are raised, after everything was tried.
    """
    work = _ReconciledJob(versions, job, memory)
    if any(obj["kind"] == PODS.kind for obj in plan.create) or any(d.ref.kind == PODS.kind for d in plan.delete):
        versions.known_pods.forget(JobKey(work.namespace, job["metadata"]["name"]))
    pods = [obj for obj in plan.create if obj["kind"] in LAST_KINDS]
    others = [obj for obj in plan.create if obj["kind"] not in LAST_KINDS]
    outcomes = await _apply_together(
        *(_delete_object(work, deletion) for deletion in plan.delete),
        *(_create_object(work, obj) for obj in others),
    )
    # Admission refuses a pod whose ServiceAccount is not there yet, so pods come second; and none comes where
    # another's object is in the way, or without its Secret.
    if not any(isinstance(outcome, Foreign | Refusal) for outcome in outcomes):
        if any(obj["kind"] != "PodTemplate" for obj in others) and not memory.is_outdated:
            memory.looked_at = time.monotonic()  # what was just made need not be read
        # One finds out for all whether they are refused as they are.
        outcomes += await _apply_together(*(_create_object(work, obj) for obj in pods[:1]))
        outcomes += await _apply_together(*(_create_object(work, obj) for obj in pods[1:]))
    refusals = tuple(o for o in outcomes if isinstance(o, Refusal))
    surprised = any(isinstance(o, Foreign) for o in outcomes) or refusals != memory.refusals
    if refusals:
        memory.looked_at = float("-inf")  # perhaps because of something that is no more
    memory.refusals = refusals
    return surprised


async def _apply_together(*requests: Coroutine[Any, Any, Outcome]) -> list[Outcome]:
    """What became of each request; when one failed, its error, after all others have ended."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _create_object(work: _ReconciledJob, obj: Mapping[str, Any]) -> Outcome:
    resource, ref = resource_of(obj["kind"], obj["apiVersion"]), ObjectRef(obj["kind"], obj["metadata"]["name"])
    if resource is SERVICE_ACCOUNTS:
        obj = await _pulling_as_default(work, obj)
    try:
        version = await _stored_object(work, resource, obj)
    except AlreadyExists:
        return await _explain_taken(work, resource, ref)
    except (Forbidden, Unprocessable, NotFound, ServerError) as refused:
        if isinstance(refused, ServerError) and _WEBHOOK_FAILED not in refused.message:
            raise
        log.info("%s was refused: %s", ref, refused, extra={"job": f"{work.namespace}/{work.job['metadata']['name']}"})
        return Refusal(ref, refused.code, refused.reason, refused.message)
    if resource is PODS:
        work.versions.saw_pod(version)
    elif work.memory.outdate(ref.kind):
        pass
    elif resource is SECRETS:
        _note_secret(work, ref)
    else:
        work.memory.owned.add(ref)
    return None


async def _stored_object(work: _ReconciledJob, resource: ApiResource, obj: Mapping[str, Any]) -> str:
    """The version of the created object. Raises ApiError."""

    async def create(given: Mapping[str, Any]) -> str:
        return await work.versions.api.create_unread(resource, work.namespace, given)

    if resource is not PODS:
        return await create(obj)
    version, secured = await create_admitted(create, obj, work.secured)
    work.secured |= secured
    return version


async def _pulling_as_default(work: _ReconciledJob, account: Mapping[str, Any]) -> Mapping[str, Any]:
    """`account` with the pull secrets of its namespace's default one: what a pod there may pull, the job's may."""
    try:
        default = await work.versions.api.get(SERVICE_ACCOUNTS, work.namespace, "default")
    except (Forbidden, NotFound):
        return account
    own, names = account.get("imagePullSecrets") or (), default.get("imagePullSecrets") or ()
    secrets = added_pull_secrets(own, (str(secret["name"]) for secret in names if secret.get("name")))
    return {**account, "imagePullSecrets": secrets} if secrets else account


def _note_secret(work: _ReconciledJob, ref: ObjectRef) -> None:
    """The job's Secret is there; the next attempt will ask again."""
    work.memory.owned.add(ref)
    work.memory.secret_attempt = int((work.job.get("status") or {}).get("attempt") or 0)


def _was_mounted(job: Mapping[str, Any]) -> bool:
    """Whether pods of the job have mounted the Secret that its status names."""
    ledger = (job.get("status") or {}).get("ledger") or {}
    mounted = ledger.get("credentialsMounted")
    return mounted is not None and int(mounted) == int(ledger.get("credentials") or 0)


async def _explain_taken(work: _ReconciledJob, resource: ApiResource, ref: ObjectRef) -> Foreign | None:
    """A name that is taken is ours (an earlier creation whose answer was lost), or somebody else's."""
    if resource is SECRETS:
        if _was_mounted(work.job):
            _note_secret(work, ref)
            return None
        # Whose a Secret is can't be read. One that this process did not just make, and that no pod of the job has
        # mounted, counts as another's: the next plan takes another name.
        work.memory.taken_secrets.add(ref)
        return Foreign(ref)
    found = await find_owner(work.versions.api, work.job, resource, ref.name)
    if isinstance(found, Foreign):
        work.memory.foreign[ref] = found
        return found
    if not work.memory.outdate(ref.kind) and found is not None and resource is not PODS:
        work.memory.owned.add(ref)
        work.memory.foreign.pop(ref, None)
    return None


async def _delete_object(work: _ReconciledJob, deletion: PlannedDeletion) -> None:
    ref = deletion.ref
    work.memory.outdate(ref.kind)
    try:
        await work.versions.api.delete(
            resource_of(ref.kind, ref.api_version),
            work.namespace,
            ref.name,
            uid=deletion.uid,
            grace_period_s=deletion.grace_s,
        )
    except (NotFound, Conflict) as gone:
        # gone, or replaced by another of its name: either way the one that was meant is no more
        log.debug("%s was not there to delete: %s", ref, gone)
    work.memory.owned.discard(ref)
