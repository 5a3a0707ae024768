"""Last error handler of agent and launcher: logs the error, writes a termination message, returns the exit code."""

import logging
import os
from collections.abc import Callable

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.ports import PortTaken
from ringtrain_job.control.model import CannotRun, Failure, Outcome, Reason, Verdict
from ringtrain_job.control.settings import read_termination
from ringtrain_job.control.termination import termination_message, write_termination_message

log = logging.getLogger(__name__)


def exit_code_of(body: Callable[[], int]) -> int:
    """Run `body` and return its exit code. If `body` raises an error, write a termination message and return the
    error's exit code."""
    try:
        return body()
    except ConfigurationError as exc:
        log.error("%s", exc)
        reason = exc.reason if isinstance(exc, CannotRun) else Reason.BAD_CONFIGURATION
        return _write_failure(contract.EXIT_BAD_CONFIGURATION, reason, str(exc))
    except PortTaken as exc:
        log.error("%s", exc)
        return _write_failure(contract.EXIT_NOT_ASSEMBLED, Reason.NOT_ASSEMBLED, str(exc))
    except Exception as exc:
        log.exception("internal error of ringtrain")
        return _write_failure(contract.EXIT_INTERNAL_ERROR, Reason.INTERNAL_ERROR, f"{type(exc).__name__}: {exc}")


def _write_failure(code: int, reason: Reason, message: str) -> int:
    """Write a termination message with the failure; return `code`."""
    verdict = Verdict(Outcome.FAILED, code, failure=Failure(reason, message))
    attempt, workers, slots = (
        _number_or_one(name) for name in (contract.ENV_ATTEMPT, contract.ENV_NUM_WORKERS, contract.ENV_SLOTS_PER_WORKER)
    )
    write_termination_message(
        read_termination(EnvironmentVariables(os.environ)), termination_message(verdict, attempt, workers * slots)
    )
    return code


def _number_or_one(name: str) -> int:
    """Return the variable's number, or 1: the variable itself may be the invalid one."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 1
