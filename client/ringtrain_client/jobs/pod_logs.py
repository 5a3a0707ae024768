"""Output of the pod of a data worker or evaluator. The launcher's log does not contain it."""

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
    """Error: the requested data worker or evaluator has no pod now. The message lists those that have a pod."""


@dataclass(frozen=True)
class WantedPod:
    """Pod whose output is requested: data worker `index` of the job `name`, or its evaluator if `index` is None."""

    name: str
    index: int | None
    follow: bool = False
    tail: int | None = None

    @property
    def pod(self) -> str:
        """Name of the pod."""
        return f"{self.name}-evaluator" if self.index is None else f"{self.name}-data-{self.index}"


async def read_pod(session: ClusterAccess, wanted: WantedPod) -> AsyncGenerator[bytes, None]:
    """Yield the output of the pod's main container, as its node stores it. Raises NoSuchPod if there is no such pod."""
    try:
        pod = await session.api.get(PODS, session.namespace, wanted.pod)
    except NotFound as exc:
        raise NoSuchPod(await _missing_pod_text(session, wanted)) from exc
    container = main_container(pod)["name"]
    output = session.api.pod_log(
        session.namespace, wanted.pod, container=container, follow=wanted.follow, tail_lines=wanted.tail
    )
    async with aclosing(output) as lines:
        async for line in lines:
            yield line


async def _missing_pod_text(session: ClusterAccess, wanted: WantedPod) -> str:
    """Return an error message for a missing pod."""
    job = resolved_job_spec(await session.api.get(JOBS, session.namespace, wanted.name))
    section = "evaluator" if wanted.index is None else "dataWorkers"
    if section not in job["spec"]:
        return f"{wanted.pod} does not exist: {wanted.name} has no spec.{section}"
    roles = f"{contract.LABEL_ROLE} in ({contract.ROLE_DATA},{contract.ROLE_EVALUATOR})"
    labels = f"{contract.LABEL_JOB}={wanted.name},{roles}"
    pods = await session.api.select(PODS, session.namespace, labels=labels)
    existing = ", ".join(sorted(pod["metadata"]["name"] for pod in pods)) or "none"
    return (
        f"{wanted.pod} does not exist; auxiliary pods of {wanted.name}: {existing}. A pod's output "
        "is deleted with it; dtj why shows how the last pod ended"
    )
