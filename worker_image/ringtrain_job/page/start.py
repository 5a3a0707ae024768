"""Where the start of an attempt went: the time from each event to the next, by what the events tell."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

# The part of a start that each event ends, in their order. `Pulled` is of the pod that started last.
_PARTS: Final = {
    "Created": "queued",
    "Scheduled": "scheduled",
    "Pulling": "prepared",
    "Pulled": "pulled",
    "Started": "started",
    "Joined": "joined",
    "Running": "formed",
    "Step": "first step",
}


def start_parts(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Each part of the start that is known, with its seconds; empty before the ranks were started.

    `events`: of one attempt. A start begins when the job was asked for, where Kubernetes tells, else with the
    launcher.
    """
    first: dict[str, float] = {}
    for event in events:
        first.setdefault(str(event["kind"]), float(event["time"]))
    formed = first.get("Running")
    if formed is None:
        return []
    if first.get("Joined", formed) > formed:  # an elastic job begins with fewer than all
        del first["Joined"]
    before = first.get("Queued", first.get("Created", first.get("Launcher", formed)))
    found = []
    for kind, part in _PARTS.items():
        time = first.get(kind)
        if time is None or (kind == "Created" and "Queued" not in first):
            continue
        found.append((part, max(0.0, time - before)))  # clocks of two machines
        before = max(before, time)
    return found
