"""Error responses of the fake server: a metav1.Status with its HTTP code."""

from typing import Any


class StatusError(Exception):
    """A refusal; `body` is the Status object that a real API server would send."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


def not_found(plural: str, name: str) -> StatusError:
    """404 for one named object."""
    return StatusError(404, "NotFound", f'{plural} "{name}" not found')


def already_exists(plural: str, name: str) -> StatusError:
    """409 for a create of a name that is taken."""
    return StatusError(409, "AlreadyExists", f'{plural} "{name}" already exists')


def conflict(plural: str, name: str, why: str) -> StatusError:
    """409 for a precondition that does not hold."""
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> StatusError:
    """422 for an object that breaks a rule of its kind."""
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {why}')


def gone(why: str) -> StatusError:
    """410 for a resource version that history no longer reaches back to."""
    return StatusError(410, "Expired", why)


def version_ahead(asked: int, current: int) -> StatusError:
    """504 for a list that must not be older than a version that is still to come; a real server waits first."""
    refused = StatusError(504, "Timeout", f"Too large resource version: {asked}, current: {current}")
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    refused.body["details"] = {"causes": [cause], "retryAfterSeconds": 1}
    return refused


def bad_request(why: str) -> StatusError:
    """400 for what cannot be parsed."""
    return StatusError(400, "BadRequest", why)
