"""What a failed attempt leads to: runPolicy.failureRules, then backoffLimit."""

from __future__ import annotations

from ..contract import EXIT_BAD_CONFIGURATION
from ..observe import Situation
from ..status import Failure
from .verdict import Finish, Restart

# Failures that a restart cannot mend, unless a rule says otherwise.
_HOPELESS_REASONS = frozenset(
    {"BadConfiguration", "MpirunNotFound", "WrongImplementation", "SlotsMismatch", "NoMpiInit"}
)


def judge(s: Situation, failure: Failure) -> Restart | Finish:
    """Restart, counted or not, or the job's end. The first rule that matches decides; then the hopeless fail."""
    policy = s.job.spec.run_policy
    what = describe(failure)
    rule = next((r for r in policy.failure_rules if r.matches(failure.exit_code, failure.reason)), None)
    if rule is not None and rule.action == "FailJob":
        return Finish("Failed", "FailureRule", f"{what}; a failure rule says FailJob", failure)
    if rule is not None and rule.action == "Ignore":
        return Restart("IgnoredFailure", f"{what}; a failure rule says Ignore", failure=failure)
    if rule is None and _hopeless(failure):
        return Finish("Failed", failure.reason, f"{what}; a restart would not help", failure)
    if s.status.restarts >= policy.backoff_limit:
        message = f"{what}; restarted {s.status.restarts} of at most {policy.backoff_limit} times (backoffLimit)"
        return Finish("Failed", "BackoffLimitExceeded", message, failure)
    return Restart(failure.reason, what, counted=True, failure=failure)


def describe(failure: Failure) -> str:
    """One line about a failure: who, what, exit code."""
    where = f"rank {failure.rank}" if failure.rank is not None else failure.pod or "the gang"
    if failure.rank is not None and failure.pod:
        where += f" ({failure.pod})"
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    return f"attempt {failure.attempt}: {failure.message or failure.reason} [{where}{code}]"


def _hopeless(failure: Failure) -> bool:
    unattested = failure.reason == "WorldIncomplete" and failure.exit_code == 0
    return unattested or failure.exit_code == EXIT_BAD_CONFIGURATION or failure.reason in _HOPELESS_REASONS
