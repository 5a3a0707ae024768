"""HTTP requests for tests, in which an error status is an answer."""

import urllib.error
import urllib.request

from support.deadlines import patient


def ask(url: str, data: bytes | None = None, method: str | None = None, **headers: str) -> tuple[int, str]:
    """Return status and body."""
    asked = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=patient(60)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
