"""Who may see a launcher's page: whoever shows the page's token, which gives nothing but the page."""

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
    """The token of the page, of a launcher with the token `secret`: it opens the page, and neither `/status` nor
    `/workers`, and `secret` does not follow from it."""
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


def page_link(port: int, secret: str, path: str = "/") -> str:
    """Return the link to `path` of a page that is served on `port` of this machine."""
    return f"http://{host_port(loopback_address(), port)}{path}?token={page_token(secret)}"


def started_run_lines(environment: Mapping[str, str]) -> list[str]:
    """Return what `ringtrain run` prints when its launcher has started: the link, if the page is served."""
    token = environment.get(contract.ENV_STATUS_TOKEN)
    return [f"page: {page_link(int(environment[contract.ENV_STATUS_PORT]), token)}"] if token else []


class PageAccess:
    """Knows the page's tokens. `job`: what is the same in all launchers of a job, and in no other job's.

    Browsers send a cookie to every port of a host: its name is the job's own, so that two pages do not take each
    other's, and its value is the page's token, so that who else listens there gets no more than the page.
    """

    def __init__(self, secrets: Sequence[str], job: str) -> None:
        self._tokens = [page_token(secret) for secret in secrets]
        self._cookie = f"ringtrain-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

    def has(self, shown: str) -> bool:
        """Whether `shown` is a token of the page, in a time that says nothing about them."""
        return is_one_of(shown, self._tokens)

    def admits(self, authorization: str, cookies: str) -> bool:
        """Whether the headers Authorization and Cookie hold a token of the page."""
        if self.has(bearer(authorization)):
            return True
        # Not SimpleCookie: it gives none at all where one is not to its taste, and others on this host set theirs.
        found = (cookie.strip().partition("=") for cookie in cookies.split(";"))
        return any(name == self._cookie and self.has(value) for name, _, value in found)

    def set_cookie(self, token: str) -> str:
        """The header Set-Cookie for who has shown `token`. Lax: a link elsewhere can be followed."""
        return f"{self._cookie}={token}; HttpOnly; SameSite=Lax; Path=/"


def keep_page(files: AttemptFiles, link: str, ranks: int | None) -> None:
    """Leave for `ringtrain ui`, readable by this user alone, where the page of a run that goes on is.

    `ranks`: how many it has; None: that changes.
    """
    with suppress(OSError):  # the run goes on, whether or not the disk is full
        files.page.unlink(missing_ok=True)
        opened = os.open(files.page, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "w") as file:
            json.dump({"host": socket.gethostname(), "link": link, "worldSize": ranks}, file)


def kept_page(files: AttemptFiles) -> dict[str, Any]:
    """What was left, `link` and `worldSize`; empty where there is nothing, or the launcher is another host's."""
    try:
        found = json.loads(files.page.read_text())
        return found if found["host"] == socket.gethostname() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
