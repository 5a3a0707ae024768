"""Environments of a small job's pods, and a clock that a test sets."""


class Clock:
    """Clock whose time changes when the test sets `now`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def environment(workers: int, slots: int = 1, attempt: int = 1, **more: str) -> dict[str, str]:
    """Return the launcher's environment. `more`: other variables, named without RINGTRAIN_."""
    told = {"JOB_NAME": "digits", "JOB_NAMESPACE": "default", "JOB_UID": "uid-1", "ATTEMPT": str(attempt)}
    sizes = {"NUM_WORKERS": str(workers), "SLOTS_PER_WORKER": str(slots)}
    return {f"RINGTRAIN_{name}": value for name, value in (told | sizes | more).items()}


def of_agent(**more: str) -> dict[str, str]:
    """Return the environment of the agent of worker 1 of 3, with 2 slots, in attempt 2."""
    return environment(3, 2, 2, WORKER_INDEX="1", LAUNCHER_ADDRESS="launcher:7350", **more)
