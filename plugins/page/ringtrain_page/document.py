"""HTML page of a run."""

import json
from importlib.resources import files
from typing import Any

_PLACE = "/*DATA*/"
# Characters that would end the script element, or a line of a script in old browsers.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def live_page() -> str:
    """Return the document without data; the launcher that serves it sends them."""
    return _serving_page({"live": True})


def runs_page(directory: str) -> str:
    """Return the document that lists the runs below `directory`; it requests their data repeatedly."""
    return _serving_page({"list": directory})


def _serving_page(run: dict[str, Any]) -> str:
    """Return the document with permission to connect to its own server."""
    return page(run).replace("connect-src 'none'", "connect-src 'self'", 1)


def page(run: dict[str, Any]) -> str:
    """Return one self-contained HTML document with the data `run` of `summarize_page`."""
    data = json.dumps(run, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    template = (files("ringtrain_page") / "page.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, data, 1)
