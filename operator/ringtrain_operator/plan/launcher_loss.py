"""What became of an elastic job's launcher whose pod is lost while its world lives."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..build import RESTARTED_CODES
from ..observe.model import PodView
from ..observe.pods import termination_of
from ..status.incarnations import incarnations_of
from ..status.situation import Situation
from .disruption import pod_disruption

# How long a kubelet may take to start a killed launcher again: the first pause is 10 s.
LAUNCHER_BACK_S = 60


def comes_back_by(s: Situation, launcher: PodView) -> datetime | None:
    """Until when an elastic job's launcher that was killed may be started again in its pod; None: it is not.

    It learns the world from the agents then. A pod whose other containers run keeps its phase also where the
    kubelet knows no rules of restarting.
    """
    killed = launcher.exit_code in RESTARTED_CODES and not termination_of(launcher, s.attempt)
    if s.job.spec.elastic is None or not killed or launcher.phase != "Running":
        return None
    due = (launcher.exit_time or s.now) + timedelta(seconds=LAUNCHER_BACK_S)
    return due if s.now < due else None


def launcher_loss(s: Situation) -> str:
    """What became of the launcher's pod if that is, or is to be, no more, and the attempt goes on; else empty.

    A launcher that has said how the attempt ended is not lost, whatever becomes of its pod.
    """
    pod, notes = s.launcher, incarnations_of(s.status)
    if not s.has_world:
        return ""
    if pod is None:
        return "no longer exists" if notes.launcher_present else ""
    outcome = termination_of(pod, s.attempt).get("outcome")
    if outcome in ("Succeeded", "Failed") or comes_back_by(s, pod) is not None:
        return ""
    taken = pod_disruption(pod)
    if taken or not pod.finished:
        return taken
    if outcome == "Stopped":
        return "was asked to stop"
    why = f" ({pod.exit_reason})" if pod.exit_reason not in ("", "Error") else ""
    return f"was killed, exit code {pod.exit_code}{why}" if pod.exit_code in RESTARTED_CODES else ""
