"""Access to a launcher's page by a token that gives no other right."""

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ringtrain.shared import contract
from ringtrain.shared.address import host_port, loopback_address
from ringtrain.shared.authentication import bearer, is_one_of
from ringtrain_job.logs.layout import AttemptFiles


def page_token(secret: str) -> str:
    """Return the page's token for a launcher with the token `secret`.

    It opens the page, but neither `/status` nor `/workers`. `secret` cannot be computed from it.
    """
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


def page_link(port: int, secret: str, path: str = "/") -> str:
    """Return the link to `path` of a page that is served on `port` of this machine."""
    return f"http://{host_port(loopback_address(), port)}{path}?token={page_token(secret)}"


def started_run_lines(environment: Mapping[str, str]) -> list[str]:
    """Return the lines that `ringtrain run` prints when its launcher has started: the link if the page is served."""
    token = environment.get(contract.ENV_STATUS_TOKEN)
    return [f"page: {page_link(int(environment[contract.ENV_STATUS_PORT]), token)}"] if token else []


class PageAccess:
    """Checks the page's tokens. `job`: a text that all launchers of a job share, and that differs between jobs.

    Browsers send a cookie to every port of a host. So its name depends on the job, and its value is the page's token:
    pages do not use each other's cookie, and another program on a port of the host gets only access to the page.
    """

    def __init__(self, secrets: Sequence[str], job: str) -> None:
        self._tokens = [page_token(secret) for secret in secrets]
        self._cookie = f"ringtrain-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

    def has(self, shown: str) -> bool:
        """Return whether `shown` is a token of the page, in constant time."""
        return is_one_of(shown, self._tokens)

    def admits(self, authorization: str, cookies: str) -> bool:
        """Return whether the header Authorization or Cookie has a token of the page."""
        if self.has(bearer(authorization)):
            return True
        # Not SimpleCookie: it returns no cookie if one is malformed, and other programs on this host set theirs.
        found = (cookie.strip().partition("=") for cookie in cookies.split(";"))
        return any(name == self._cookie and self.has(value) for name, _, value in found)

    def set_cookie(self, token: str) -> str:
        """Return the header Set-Cookie for a client with `token`. Lax: links from other pages work."""
        return f"{self._cookie}={token}; HttpOnly; SameSite=Lax; Path=/"


def write_page_file(files: AttemptFiles, link: str, ranks: int | None) -> None:
    """Write the link to a running run's page into a file for `ringtrain ui`, readable by this user only.

    `ranks`: number of ranks; None if it changes.
    """
    with suppress(OSError):  # a full disk must not end the run
        files.page.unlink(missing_ok=True)
        opened = os.open(files.page, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w") as file:
            json.dump({"host": socket.gethostname(), "link": link, "worldSize": ranks}, file)


def read_page_file(files: AttemptFiles) -> dict[str, Any]:
    """Return the page file's content, `link` and `worldSize`; empty if it does not exist or is another host's."""
    try:
        found = json.loads(files.page.read_text())
        return found if found["host"] == socket.gethostname() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
