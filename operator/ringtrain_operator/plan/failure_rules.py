"""Decision after a failed attempt: restart or end the job, by runPolicy.failureRules, then backoffLimit."""

import re

from ..contract import EXIT_BAD_CONFIGURATION
from ..errors import counted
from ..status.decision import Finish, Restart
from ..status.ledger import LostPod
from ..status.model import Failure
from ..status.situation import Situation
from ..workers.gang import LAST_LINE_CHARACTERS

# Failures that a restart cannot resolve, unless a failure rule says otherwise.
_HOPELESS_REASONS = frozenset(
    {
        *("BadConfiguration", "CannotStart", "NotFinite"),
        *("MpirunNotFound", "WrongImplementation", "SlotsMismatch", "NoMpiInit"),
    }
)

# Message of plan/outcome.py about a pod that was killed at its memory limit.
_AT_LIMIT = re.compile(r"; its container may have (\S+),")


def judge_failure(
    s: Situation, failure: Failure, *, disrupted: bool = False, lost: LostPod | None = None
) -> Restart | Finish:
    """Decide whether a failed attempt ends the job or restarts it, and whether that counts for backoffLimit.

    The first failure rule that matches decides. If none matches, failures that a restart cannot resolve end the job.
    `disrupted`: if no rule matches, the restart does not count. `lost`: the pod that no longer answers,
    or None. With such a pod, it is decided later whether the restart counts: when it is known whether the pod's node is
    at fault.
    """
    policy = s.job.spec.run_policy
    what = describe_failure(failure)
    rule = next((r for r in policy.failure_rules if r.matches(failure.exit_code, failure.reason)), None)
    if rule is not None and rule.action == "FailJob":
        return Finish("Failed", "FailureRule", f"{what}; a failure rule has action FailJob", failure)
    if rule is not None and rule.action == "Ignore":
        return Restart("IgnoredFailure", f"{what}; a failure rule has action Ignore", failure=failure)
    if rule is None and _is_hopeless_failure(failure):
        return Finish("Failed", failure.reason, f"{what}; a restart would not help", failure)
    if rule is None and disrupted:
        return Restart("Disrupted", what, failure=failure)
    if rule is None and _is_out_of_memory_again(s.status.failure, failure):
        why = "the previous attempt failed the same way, at the same limit; a restart would not help"
        return Finish("Failed", "OutOfMemory", f"{what}; {why}", failure)
    if lost is not None:
        return Restart(failure.reason, what, failure=failure, lost=lost)
    if s.status.restarts >= policy.backoff_limit:
        return limit_reached_decision(s, failure)
    return Restart(failure.reason, what, counted=True, failure=failure)


def limit_reached_decision(s: Situation, failure: Failure) -> Finish:
    """Decide to end a job that has used all restarts of its backoffLimit."""
    limit = counted(s.job.spec.run_policy.backoff_limit, "time")
    message = f"{describe_failure(failure)}; restarted {s.status.restarts} of at most {limit} (backoffLimit)"
    return Finish("Failed", "BackoffLimitExceeded", message, failure)


def describe_failure(failure: Failure) -> str:
    """Return a failure as one line of text: message, pod, exit code, and the last line of output."""
    what = failure.message or failure.reason
    pod = failure.pod if failure.pod and failure.pod not in what else ""
    has_code = failure.exit_code is None or str(failure.exit_code) in what or (failure.signal or "-") in what
    code = "" if has_code else f"exit code {failure.exit_code}"
    details = ", ".join(part for part in (pod, code) if part)
    wrote = next((line.strip() for line in reversed(failure.log_tail) if line.strip()), "")
    error = f": {wrote[:LAST_LINE_CHARACTERS]}" if wrote not in what else ""
    return f"attempt {failure.attempt}: {what}" + (f" ({details})" if details else "") + error


def _is_out_of_memory_again(before: Failure | None, failure: Failure) -> bool:
    """Return whether two attempts in a row failed because a pod was killed at the same memory limit."""
    if before is None or before.attempt != failure.attempt - 1:
        return False
    limits = [_AT_LIMIT.search(one.message) for one in (before, failure)]
    return all(limits) and len({found[1] for found in limits if found}) == 1


def _is_hopeless_failure(failure: Failure) -> bool:
    unattested = failure.reason == "WorldIncomplete" and failure.exit_code == 0
    return unattested or failure.exit_code == EXIT_BAD_CONFIGURATION or failure.reason in _HOPELESS_REASONS
