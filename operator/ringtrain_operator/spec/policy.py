"""Models of `spec.runPolicy` (start, restarts, end and cleanup of a job) and `spec.elastic` (its world size)."""

from typing import Annotated, Literal

from pydantic import Field

from .base import MOST_WORKERS, Rule, SpecModel

ExitCode = Annotated[int, Field(ge=1, le=255)]

FailureReason = Literal[
    "RankFailed",
    "AgentLost",
    "NotAssembled",
    "WorldIncomplete",
    "NotFinite",
    "BadConfiguration",
    "LauncherFailed",
    "InternalError",
    "MpirunNotFound",
    "SlotsMismatch",
    "WrongImplementation",
    "NoMpiInit",
    "ProgressDeadlineExceeded",
    "CannotStart",
    "InitContainerFailed",
    "SideContainerFailed",
]


class ExitCodeRange(SpecModel):
    """All exit codes from `min` to `max`, inclusive."""

    min: ExitCode = Field(description="Lowest exit code of the range.")
    max: ExitCode = Field(description="Highest exit code of the range.")

    RULES = (
        Rule(
            cel="self.min <= self.max",
            message="min must not be greater than max",
            path="min",
            holds=lambda r: r.min <= r.max,
        ),
    )


class OnExitCodes(SpecModel):
    """Matches the exit code of the first rank that failed."""

    operator: Literal["In", "NotIn"] = Field(
        default="In",
        description="In: matches if the exit code is one of those listed. NotIn: matches if the exit code is not "
        "listed.",
    )
    values: tuple[ExitCode, ...] = Field(default=(), max_length=64, description="Exit codes to compare with.")
    ranges: tuple[ExitCodeRange, ...] = Field(
        default=(),
        max_length=16,
        description="Ranges of exit codes; a process that is killed by signal n has the code 128 + n.",
    )

    RULES = (
        Rule(
            cel="size(self.values) + size(self.ranges) > 0",
            message="list at least one exit code in values or ranges",
            path="values",
            holds=lambda on: bool(on.values or on.ranges),
        ),
    )

    def matches(self, code: int) -> bool:
        """Return whether this condition matches the exit code `code`."""
        listed = code in self.values or any(r.min <= code <= r.max for r in self.ranges)
        return listed if self.operator == "In" else not listed


class FailureRule(SpecModel):
    """Action for a failed attempt. The first rule that matches decides; if none matches, the operator's
    own rules decide."""

    action: Literal["FailJob", "RestartJob", "Ignore"] = Field(
        description="FailJob: the job fails without a restart. RestartJob: the job restarts, and the restart counts "
        "against backoffLimit. Ignore: the job restarts, and the restart does not count."
    )
    on_exit_codes: OnExitCodes | None = Field(
        default=None, description="Matches the exit code of the first rank that failed."
    )
    on_reasons: tuple[FailureReason, ...] = Field(
        default=(), max_length=16, description="Matches the reason in status.failure."
    )

    RULES = (
        Rule(
            cel="has(self.onExitCodes) || size(self.onReasons) > 0",
            message="a rule needs onExitCodes or onReasons; with both, both must match",
            path="onExitCodes",
            holds=lambda rule: rule.on_exit_codes is not None or bool(rule.on_reasons),
        ),
    )

    def matches(self, exit_code: int | None, reason: str) -> bool:
        """Return whether the rule applies to a failure. `exit_code`: None if no process ended."""
        if self.on_reasons and reason not in self.on_reasons:
            return False
        if self.on_exit_codes is None:
            return True
        return exit_code is not None and exit_code != 0 and self.on_exit_codes.matches(exit_code)


class RunPolicy(SpecModel):
    """Rules for the job's start, restarts, end and cleanup."""

    suspend: bool = Field(
        default=False,
        description="True: the job has no pods. A running job stops, and continues from its checkpoint when you set "
        "the field to false.",
    )
    clean_pod_policy: Literal["None", "Running", "All"] = Field(
        default="Running",
        description="Which pods are deleted when the job has ended: none, those still running, or all. A pod in which "
        "only sidecars still run is always deleted.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Seconds from the job's end to its deletion. Unset: the job is never deleted.",
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds after which the job fails. The time in which the job waits for pods counts; the time in "
        "which it is suspended does not.",
    )
    backoff_limit: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Number of restarts of the whole gang before the job fails. A failure that a restart cannot "
        "repair is not retried: a wrong configuration, or a second kill at the same memory limit.",
    )
    failure_rules: tuple[FailureRule, ...] = Field(
        default=(), max_length=20, description="Actions for failed attempts, by exit code and reason."
    )
    fail_on_nan: bool = Field(
        default=False,
        alias="failOnNaN",
        description="True: the job fails, with reason NotFinite and without a restart, when a rank reports a loss "
        "that is NaN or infinite (rt.report). A failure rule for NotFinite may restart the job instead.",
    )
    progress_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Seconds without a reported step after which a running gang is restarted. Time waiting for pods, "
        "images or a queue does not count; time before the first step does.",
    )


class Elastic(SpecModel):
    """Limits between which the world size may change within an attempt. Unset: any loss restarts the gang."""

    min_replicas: int = Field(
        default=1,
        ge=1,
        le=MOST_WORKERS,
        description="Minimum number of workers with which training continues; must not be greater than "
        "worker.replicas.",
    )
    max_replicas: int = Field(ge=1, le=MOST_WORKERS, description="Maximum value of worker.replicas while the job runs.")
    on_loss: Literal["Replace", "Shrink", "Restart"] = Field(
        default="Replace",
        description="Reaction of the ranks to the loss of a worker. Replace: their processes continue and wait for "
        "the new worker, for replaceTimeoutSeconds. Shrink: their processes continue at once with the remaining "
        "workers; the new worker joins later. Restart: all ranks start again in the existing pods, which works for "
        "any program.",
    )
    replace_timeout_seconds: int = Field(
        default=120,
        ge=1,
        le=86400,
        description="Seconds to wait for a new worker after a loss. After this time training continues with fewer "
        "workers, if at least minReplicas remain.",
    )
    join_delay_seconds: int = Field(
        default=30,
        ge=0,
        le=86400,
        description="Seconds within which workers that arrive one after another join in a single change of the world.",
    )
    formation_limit: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Maximum number of changes of the world in one attempt. With one more change the attempt fails.",
    )

    RULES = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be greater than maxReplicas",
            path="minReplicas",
            holds=lambda e: e.min_replicas <= e.max_replicas,
        ),
    )
