"""What agent and launcher do with an error that nothing else handles: log it, say it, exit with its code."""

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
    """Run `body`; returns its exit code, or that of the error it raised, after writing a termination message."""
    try:
        return body()
    except ConfigurationError as exc:
        log.error("%s", exc)
        reason = exc.reason if isinstance(exc, CannotRun) else Reason.BAD_CONFIGURATION
        return _say_command_failure(contract.EXIT_BAD_CONFIGURATION, reason, str(exc))
    except PortTaken as exc:
        log.error("%s", exc)
        return _say_command_failure(contract.EXIT_NOT_ASSEMBLED, Reason.NOT_ASSEMBLED, str(exc))
    except Exception as exc:
        log.exception("a defect in ringtrain")
        return _say_command_failure(contract.EXIT_INTERNAL_ERROR, Reason.INTERNAL_ERROR, f"{type(exc).__name__}: {exc}")


def _say_command_failure(code: int, reason: Reason, message: str) -> int:
    verdict = Verdict(Outcome.FAILED, code, failure=Failure(reason, message))
    attempt, workers, slots = (
        _exit_code_number(name)
        for name in (contract.ENV_ATTEMPT, contract.ENV_NUM_WORKERS, contract.ENV_SLOTS_PER_WORKER)
    )
    write_termination_message(
        read_termination(EnvironmentVariables(os.environ)), termination_message(verdict, attempt, workers * slots)
    )
    return code


def _exit_code_number(name: str) -> int:
    """The variable as far as it is a number: it may be what is wrong."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 1
