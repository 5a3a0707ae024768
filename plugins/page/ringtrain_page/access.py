"""Token, link and cookie with which a browser may open a run's page. They give no access to the launcher's API."""

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ringtrain.shared import contract
from ringtrain.shared.address import host_port, loopback_address
from ringtrain.shared.authentication import bearer, is_one_of
from ringtrain_job.logs.fields import read_json
from ringtrain_job.logs.layout import AttemptFiles


def page_token(secret: str) -> str:
    """Return the token of the page. It is derived from `secret`, the token of the launcher's API.

    The token opens the page, but neither `/status` nor `/workers`. `secret` cannot be computed from the token.
    """
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


def page_link(port: int, secret: str, path: str = "/") -> str:
    """Return the URL, with token, of `path` on a page server at `port` of this machine."""
    return f"http://{host_port(loopback_address(), port)}{path}?token={page_token(secret)}"


def started_run_lines(environment: Mapping[str, str]) -> list[str]:
    """Return the lines that `ringtrain run` prints after start: the page's link, or none if no page is served."""
    token = environment.get(contract.ENV_STATUS_TOKEN)
    return [f"page: {page_link(int(environment[contract.ENV_STATUS_PORT]), token)}"] if token else []


class PageAccess:
    """Check of page tokens and cookies. `job`: text that only the launchers of one job share, for the cookie's name.

    Browsers send a cookie to every port of a host. So its name depends on the job, and its value is the page's token:
    pages do not use each other's cookie, and another program on a port of the host gets only access to the page.
    """

    def __init__(self, secrets: Sequence[str], job: str) -> None:
        self._tokens = [page_token(secret) for secret in secrets]
        self._cookie = f"ringtrain-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

    def has(self, shown: str) -> bool:
        """Return whether `shown` is a valid token of the page. Takes constant time."""
        return is_one_of(shown, self._tokens)

    def admits(self, authorization: str, cookies: str) -> bool:
        """Return whether the value of the header Authorization or Cookie contains a valid token."""
        if self.has(bearer(authorization)):
            return True
        # Not SimpleCookie: it returns no cookie if one is malformed, and other programs on this host set theirs.
        found = (cookie.strip().partition("=") for cookie in cookies.split(";"))
        return any(name == self._cookie and self.has(value) for name, _, value in found)

    def set_cookie(self, token: str) -> str:
        """Return a Set-Cookie value that stores `token`. SameSite=Lax, so that links from other sites work."""
        return f"{self._cookie}={token}; HttpOnly; SameSite=Lax; Path=/"


def write_page_file(files: AttemptFiles, link: str, ranks: int | None) -> None:
    """Write the page's link to a file that only this user can read, so that `ringtrain ui` finds a running run's page.

    `ranks`: number of ranks; None if it changes.
    """
    with suppress(OSError):  # a full disk must not end the run
        files.page.unlink(missing_ok=True)
        opened = os.open(files.page, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w") as file:
            json.dump({"host": socket.gethostname(), "link": link, "worldSize": ranks}, file)


def read_page_link(files: AttemptFiles) -> str:
    """Return the link in the file of `write_page_file`; empty if it is missing or was written on another host."""
    found = read_json(files.page)
    if not isinstance(found, dict) or found.get("host") != socket.gethostname():
        return ""
    link = found.get("link")
    return link if isinstance(link, str) and link.isascii() and link.isprintable() else ""
