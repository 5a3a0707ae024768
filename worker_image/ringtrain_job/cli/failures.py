"""Last error handler of agent and launcher: log the error, write a termination message, return an exit code."""

import errno
import logging
import os
import resource
from collections.abc import Callable

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.ports import PortTaken
from ringtrain_job.control.model import Failure, Outcome, Reason, Verdict, reason_of
from ringtrain_job.control.settings import read_termination
from ringtrain_job.control.termination import termination_message, write_termination_message

log = logging.getLogger(__name__)


def exit_code_of(body: Callable[[], int], print_error: Callable[[str], object] = log.error) -> int:
    """Run `body` and return its exit code. If it raises, write a termination message and return an exit code for the
    error. `print_error`: prints an error that the user can correct."""
    try:
        return body()
    except ConfigurationError as exc:
        print_error(str(exc))
        return _write_failure(contract.EXIT_BAD_CONFIGURATION, reason_of(exc), str(exc))
    except PortTaken as exc:
        print_error(str(exc))
        return _write_failure(contract.EXIT_NOT_ASSEMBLED, Reason.NOT_ASSEMBLED, str(exc))
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            problem = f"{exc.strerror}: a process may open {most} files here; raise the limit (ulimit -n)"
            print_error(problem)
            return _write_failure(contract.EXIT_BAD_CONFIGURATION, Reason.BAD_CONFIGURATION, problem)
        log.exception("internal error of ringtrain")
        return _write_failure(contract.EXIT_INTERNAL_ERROR, Reason.INTERNAL_ERROR, f"{type(exc).__name__}: {exc}")


def _write_failure(code: int, reason: Reason, message: str) -> int:
    """Write a termination message for a failure; return `code`."""
    verdict = Verdict(Outcome.FAILED, code, failure=Failure(reason, message))
    attempt, workers, slots = (
        _number_or_one(name) for name in (contract.ENV_ATTEMPT, contract.ENV_NUM_WORKERS, contract.ENV_SLOTS_PER_WORKER)
    )
    report = termination_message(verdict, attempt, workers * slots, log_lines=())  # no rank has written a line
    write_termination_message(read_termination(EnvironmentVariables(os.environ)), report)
    return code


def _number_or_one(name: str) -> int:
    """Return the number in variable `name`, or 1 if it is invalid, because the failure may be about it."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 1
