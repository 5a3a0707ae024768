"""What the API server answered instead of success. The tree:

ApiError
├── Unreachable       no answer: refused, reset, timed out
├── CommandFailed     a command in a container (execute.py)
├── NotLeader         not sent: this replica may not write any more
├── Unauthorized      401
├── Forbidden         403, quota and admission refusals included
├── NotFound          404
├── AlreadyExists     409 on a create
├── Conflict          409 on a stale resource version or precondition
├── Gone              410
├── Unprocessable     400, 422
├── TooManyRequests   429
└── ServerError       5xx
    └── VersionAhead  504: history has not reached that resource version
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import OperatorError


class ApiError(OperatorError):
    """A request failed; `message` holds the API server's own words, `fields` what it says of each field."""

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        retry_after_s: float | None = None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.fields = tuple(fields)


class Unreachable(ApiError):
    """The API server gave no answer; the request may or may not have been carried out."""


class NotLeader(ApiError):
    """This replica lost its lease, so the write was not sent."""


class Unauthorized(ApiError):
    """The credentials were not accepted."""


class Forbidden(ApiError):
    """Permission, quota or an admission plugin said no."""


class NotFound(ApiError):
    """There is no such object, or no such namespace or kind."""


class AlreadyExists(ApiError):
    """The name is taken."""


class Conflict(ApiError):
    """The object changed since it was read."""


class Gone(ApiError):
    """History does not reach back to that resource version."""


class Unprocessable(ApiError):
    """The object or the request breaks a rule of its kind."""


class TooManyRequests(ApiError):
    """The server asked to come back later."""


class ServerError(ApiError):
    """The server failed."""


class VersionAhead(ServerError):
    """The server waited for a resource version that it has not reached."""


_BY_CODE: Mapping[int, type[ApiError]] = {
    400: Unprocessable,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Unprocessable,
    429: TooManyRequests,
}


def error_of(code: int, status: Mapping[str, Any], retry_after_s: float | None) -> ApiError:
    """The exception for an HTTP answer `code` whose body was the Status object `status`."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code}")
    if retry_after_s is None:
        retry_after_s = (status.get("details") or {}).get("retryAfterSeconds")
    kind = _BY_CODE.get(code, ServerError if code >= 500 else ApiError)
    causes = (status.get("details") or {}).get("causes") or []
    if reason == "AlreadyExists":
        kind = AlreadyExists
    elif any(cause.get("reason") == "ResourceVersionTooLarge" for cause in causes):
        kind = VersionAhead
    fields = [(str(c["field"]), str(c.get("message") or "")) for c in causes if c.get("field")]
    return kind(message, code=code, reason=reason, retry_after_s=retry_after_s, fields=fields)
