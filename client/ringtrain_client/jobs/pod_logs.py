"""What a data worker's or an evaluator's own pod writes: no rank's output, so the launcher has none of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.cluster.api.resources import JOBS, PODS
from ringtrain_operator.errors import OperatorError
from ringtrain_operator.observe.pods import main_container
from ringtrain_operator.spec.training_template import resolved_job_spec

from .session import ClusterAccess


class NoSuchPod(OperatorError):
    """The job has no such pod now; the message says which pods beside its ranks it has."""


@dataclass(frozen=True)
class WantedPod:
    """Whose output: data worker `index` of the job `name`, or its evaluator's (None)."""

    name: str
    index: int | None
    follow: bool = False
    tail: int | None = None

    @property
    def pod(self) -> str:
        """Name of the pod."""
        return f"{self.name}-evaluator" if self.index is None else f"{self.name}-data-{self.index}"


async def read_pod(session: ClusterAccess, wanted: WantedPod) -> AsyncGenerator[bytes, None]:
    """The lines that the pod's main container has written, as its node has them. Raises NoSuchPod."""
    try:
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    except NotFound as exc:
        raise NoSuchPod(await _what_there_is(session, wanted)) from exc
    container = main_container(pod)["name"]
    output = session.api.pod_log(
        session.namespace, wanted.pod, container=container, follow=wanted.follow, tail_lines=wanted.tail
    )
    async with aclosing(output) as lines:
        async for line in lines:
            yield line


async def _what_there_is(session: ClusterAccess, wanted: WantedPod) -> str:
    job = resolved_job_spec(await session.api.get(JOBS, session.namespace, wanted.name))
    section = "evaluator" if wanted.index is None else "dataWorkers"
    if section not in job["spec"]:
        return f"{wanted.pod} is not there: {wanted.name} has no spec.{section}"
    roles = f"{contract.LABEL_ROLE} in ({contract.ROLE_DATA},{contract.ROLE_EVALUATOR})"
    labels = f"{contract.LABEL_JOB}={wanted.name},{roles}"
    pods = await session.api.select(PODS, session.namespace, labels=labels)
    there = ", ".join(sorted(pod["metadata"]["name"] for pod in pods)) or "none"
    return (
        f"{wanted.pod} is not there; beside its ranks {wanted.name} has these pods now: {there}. A pod's output "
        "goes with it; dtj why tells how the last one ended"
    )
