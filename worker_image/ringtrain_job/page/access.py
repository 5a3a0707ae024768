"""Who may see a launcher's page: whoever shows the page's token, which gives nothing but the page."""

import hashlib
import hmac
from collections.abc import Sequence


def page_token(secret: str) -> str:
    """The token of the page, of a launcher with the token `secret`: it opens the page, and neither `/status` nor
    `/workers`, and `secret` does not follow from it."""
    return hmac.new(secret.encode(), b"ringtrain page", hashlib.sha256).hexdigest()


class Access:
    """Knows the page's tokens. `job`: what is the same in all launchers of a job, and in no other job's.

    Browsers send a cookie to every port of a host: its name is the job's own, so that two pages do not take each
    other's, and its value is the page's token, so that who else listens there gets no more than the page.
    """

    def __init__(self, secrets: Sequence[str], job: str) -> None:
        self._tokens = [page_token(secret) for secret in secrets]
        self._cookie = f"ringtrain-{hashlib.sha256(job.encode()).hexdigest()[:8]}"

    def has(self, shown: str) -> bool:
        """Whether `shown` is a token of the page, in a time that says nothing about them."""
        matches = [hmac.compare_digest(shown.encode(), token.encode()) for token in self._tokens]
        return any(matches)

    def admits(self, authorization: str, cookies: str) -> bool:
        """Whether the headers Authorization and Cookie hold a token of the page."""
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.has(shown.strip()):
            return True
        # Not SimpleCookie: it gives none at all where one is not to its taste, and others on this host set theirs.
        found = (cookie.strip().partition("=") for cookie in cookies.split(";"))
        return any(name == self._cookie and self.has(value) for name, _, value in found)

    def set_cookie(self, token: str) -> str:
        """The header Set-Cookie for who has shown `token`. Lax: a link elsewhere can be followed."""
        return f"{self._cookie}={token}; HttpOnly; SameSite=Lax; Path=/"
