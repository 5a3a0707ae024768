"""Errors of requests to the API server.

ApiError
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import OperatorError


class ApiError(OperatorError):
    """Error: a request failed. `message`: the API server's message; `fields`: the server's message for each field."""

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


class NoCluster(ApiError):
    """Error: neither the kubeconfig nor the environment names a cluster."""


class Unreachable(ApiError):
    """The API server did not answer; the request may or may not have been carried out."""


class NotLeader(ApiError):
    """This replica lost its lease, so the write was not sent."""


class Unauthorized(ApiError):
    """The API server rejected the credentials."""


class Forbidden(ApiError):
    """The request was denied by permissions, a quota or an admission plugin."""


class NotFound(ApiError):
    """The object, its namespace or its kind does not exist."""


class AlreadyExists(ApiError):
    """An object of that name exists."""


class Conflict(ApiError):
    """The object changed since it was read."""


class Gone(ApiError):
    """The requested resource version is too old for the server's history."""


class Unprocessable(ApiError):
    """The object or the request is invalid."""


class TooManyRequests(ApiError):
    """The server asked the client to retry later."""


class ServerError(ApiError):
    """The server failed to process the request."""


class VersionAhead(ServerError):
    """The server has not reached the requested resource version, after waiting for it."""


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
    """Return the exception for an HTTP status `code` with the Status object `status`."""
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
