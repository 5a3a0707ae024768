"""HTML documents of the page: page.html with a run's data inserted."""

import json
from importlib.resources import files
from typing import Any

_PLACE = "/*DATA*/"
# Characters that would end the script element, or a line of a script in old browsers.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def live_page() -> str:
    """Return the HTML of a live page without data; its script requests the data from the launcher."""
    return _serving_page({"live": True})


def runs_page(directory: str) -> str:
    """Return the HTML of the list of runs in folder `directory`; its script requests the data repeatedly."""
    return _serving_page({"list": directory})


def _serving_page(run: dict[str, Any]) -> str:
    """Return the HTML of a page whose script may connect to the server that sent it."""
    return page(run).replace("connect-src 'none'", "connect-src 'self'", 1)


def page(run: dict[str, Any]) -> str:
    """Return a self-contained HTML page with the data `run`, such as the result of `summarize_page`."""
    data = json.dumps(run, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    template = (files("ringtrain_page") / "page.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, data, 1)
