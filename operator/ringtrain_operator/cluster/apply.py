"""Application of a plan: create and delete objects in parallel, and record what the API server refused."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..build import SECURITY_FIELDS, added_pull_secrets, secured_pod
from ..build.names import ObjectRef
from ..observe.model import Foreign, Refusal
from ..plan import Plan, PlannedDeletion
from .api.errors import AlreadyExists, Conflict, Forbidden, NotFound, ServerError, Unprocessable
from .api.resources import PODS, SECRETS, SERVICE_ACCOUNTS, ApiResource, resource_of
from .memory import ReconcileMemory
from .observe import find_owner
from .queue import JobKey
from .versions import ResourceVersions

log = logging.getLogger(__name__)

# Kinds that refer to other objects, which must exist first.
LAST_KINDS = (PODS.kind, "ProvisioningRequest")
# The API server's message if an admission webhook failed, which may be permanent. Nothing was stored.
_WEBHOOK_FAILED = "failed calling webhook"
Outcome = Refusal | Foreign | None


@dataclass
class _ReconciledJob:
    """A job and the caches to update while its plan is applied. `secured`: security fields of its namespace."""

    versions: ResourceVersions
    job: Mapping[str, Any]
    memory: ReconcileMemory
    secured: frozenset[str] = frozenset()

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])


async def apply_plan(versions: ResourceVersions, job: Mapping[str, Any], plan: Plan, memory: ReconcileMemory) -> bool:
    """Apply all changes of `plan` except the status. Returns whether to reconcile again at once.

    Refusals with a reason (quota, admission, a template that breaks a rule) are stored in `memory` for the next plan to
    report. Failures of the API itself are raised after everything was tried.
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
    # Admission refuses a pod whose ServiceAccount does not exist, so pods come second. No pod is created while an
    # object of another owner is in the way, or without the Secret.
    if not any(isinstance(outcome, Foreign | Refusal) for outcome in outcomes):
        if any(obj["kind"] != "PodTemplate" for obj in others) and not memory.is_outdated:
            memory.objects_read_at = time.monotonic()  # objects created just now need not be read
        # The first pod shows which security fields all pods need.
        outcomes += await _apply_together(*(_create_object(work, obj) for obj in pods[:1]))
        outcomes += await _apply_together(*(_create_object(work, obj) for obj in pods[1:]))
    refusals = tuple(o for o in outcomes if isinstance(o, Refusal))
    surprised = any(isinstance(o, Foreign) for o in outcomes) or refusals != memory.refusals
    if refusals:
        memory.objects_read_at = float("-inf")  # an object may have been deleted
    memory.refusals = refusals
    return surprised


async def _apply_together(*requests: Coroutine[Any, Any, Outcome]) -> list[Outcome]:
    """Run all requests and return their outcomes. If one failed, raise its error after all have ended."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _create_object(work: _ReconciledJob, obj: Mapping[str, Any]) -> Outcome:
    resource, ref = resource_of(obj["kind"], obj["apiVersion"]), ObjectRef(obj["kind"], obj["metadata"]["name"])
    if resource is SERVICE_ACCOUNTS:
        obj = await _with_default_pull_secrets(work, obj)
    try:
        version = await _store_object(work, resource, obj)
    except AlreadyExists:
        return await _owner_of_taken_name(work, resource, ref)
    except (Forbidden, Unprocessable, NotFound, ServerError) as refused:
        if isinstance(refused, ServerError) and _WEBHOOK_FAILED not in refused.message:
            raise
        log.info(
            "the API server refused %s: %s",
            ref,
            refused,
            extra={"job": f"{work.namespace}/{work.job['metadata']['name']}"},
        )
        return Refusal(ref, refused.code, refused.reason, refused.message)
    if resource is PODS:
        work.versions.record_pod_version(version)
    elif work.memory.outdate(ref.kind):
        pass
    elif resource is SECRETS:
        _record_secret(work, ref)
    else:
        work.memory.owned.add(ref)
    return None


async def _store_object(work: _ReconciledJob, resource: ApiResource, obj: Mapping[str, Any]) -> str:
    """Create the object and return its resourceVersion. Raises ApiError if the API server refuses it."""

    async def create(given: Mapping[str, Any]) -> str:
        return await work.versions.api.create_unread(resource, work.namespace, given)

    if resource is not PODS:
        return await create(obj)
    version, secured = await create_admitted(create, obj, work.secured)
    work.secured |= secured
    return version


async def _with_default_pull_secrets(work: _ReconciledJob, account: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `account` with the pull secrets of the namespace's default ServiceAccount added."""
    try:
        default = await work.versions.api.get(SERVICE_ACCOUNTS, work.namespace, "default")
    except (Forbidden, NotFound):
        return account
    own, names = account.get("imagePullSecrets") or (), default.get("imagePullSecrets") or ()
    secrets = added_pull_secrets(own, (str(secret["name"]) for secret in names if secret.get("name")))
    return {**account, "imagePullSecrets": secrets} if secrets else account


def _record_secret(work: _ReconciledJob, ref: ObjectRef) -> None:
    """Record, for the current attempt, that the job's Secret exists."""
    work.memory.owned.add(ref)
    work.memory.secret_attempt = int((work.job.get("status") or {}).get("attempt") or 0)


def _was_mounted(job: Mapping[str, Any]) -> bool:
    """Return whether pods of the job have mounted the Secret that its status names."""
    ledger = (job.get("status") or {}).get("ledger") or {}
    mounted = ledger.get("credentialsMounted")
    return mounted is not None and int(mounted) == int(ledger.get("credentials") or 0)


async def _owner_of_taken_name(work: _ReconciledJob, resource: ApiResource, ref: ObjectRef) -> Foreign | None:
    """Return the owner of an object that exists already; None if this job owns the object.

    In that case an earlier request of the job has created the object.
    """
    if resource is SECRETS:
        if _was_mounted(work.job):
            _record_secret(work, ref)
            return None
        # The operator cannot read a Secret's owner. A Secret that this process did not create and that no pod of the
        # job has mounted counts as foreign: the next plan uses another name.
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
    except (NotFound, Conflict) as absent:
        # It is deleted, or replaced by another object of that name.
        log.debug("the object to delete, %s, does not exist: %s", ref, absent)
    work.memory.owned.discard(ref)


Stored = TypeVar("Stored")
Pod = Mapping[str, Any]


async def create_admitted(
    create: Callable[[Pod], Awaitable[Stored]], pod: Pod, secured: frozenset[str] = frozenset()
) -> tuple[Stored, frozenset[str]]:
    """Create a pod with the security fields `secured`. If it is refused, repeat with the fields that the refusal names.

    A refusal may come from Pod Security or from another policy engine. Returns the result of `create`, and the security
    fields that the created pod has. Raises the ApiError of the last refusal.
    """
    while True:
        try:
            return await create(secured_pod(pod, secured)), secured
        except (Forbidden, Unprocessable) as refused:
            named = secured | {field for field in SECURITY_FIELDS if field in refused.message}
            if secured_pod(pod, named) == secured_pod(pod, secured):
                raise
        secured = named
