"""A launcher as the program of a job's ranks: under the ring backend each would start a world of its own."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from .job import JobSpec
from .launcher_words import MPI, launcher_in
from .template import containers_of


def launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """A launcher as the program of a ring job with several ranks."""
    if spec.backend != "ring" or spec.slots * spec.worker.replicas < 2:
        return
    main = containers_of(spec.worker.template)[0]
    found = launcher_in([*(main.get("command") or []), *(main.get("args") or [])])
    if not found:
        return
    mpi = "; for a program of MPI set spec.backend: mpi" if found in MPI | {"horovodrun"} else ""
    yield Problem(
        "spec.worker.template.spec.containers[0].command",
        f"starts {found}, and every rank would start a world of its own: leave {found} and its options out and "
        f"write the program that it starts (python train.py), which the agent starts once per rank{mpi}",
    )
