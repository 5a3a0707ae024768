"""The page of a run as HTML."""

import json
from importlib.resources import files
from typing import Any

_PLACE = "/*DATA*/"
# What would end the script element, or a line of a script in old browsers.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def live_page() -> str:
    """The same document without data: the launcher that serves it sends them."""
    return _run_page_links({"live": True})


def runs_page(directory: str) -> str:
    """The document that lists runs below `directory`, without data: it asks for them, again and again."""
    return _run_page_links({"list": directory})


def _run_page_links(run: dict[str, Any]) -> str:
    return page(run).replace("connect-src 'none'", "connect-src 'self'", 1)


def page(run: dict[str, Any]) -> str:
    """One HTML document that needs nothing beside it, for what `summarize_page` has found."""
    data = json.dumps(run, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    template = (files("ringtrain_page") / "page.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, data, 1)
