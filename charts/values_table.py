"""The table of a chart's values, made from values.yaml: columns and form are those of helm-docs.

A value's description is the comment right above it; that of a group of values stands with the first of them.
"""

import json
from collections.abc import Iterator
from typing import Any

import yaml

_TYPES = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "object"}


def values_table(text: str) -> str:
    """The rows of every value of `text`, the file's content, in its order."""
    comments = _comments(text)
    rows = ["| Key | Type | Default | Description |", "| --- | --- | --- | --- |"]
    for path, value in _leaves(yaml.safe_load(text), ()):
        default = json.dumps(value).replace("|", "\\|")
        about = _described(path, comments).replace("|", "\\|")
        rows.append(f"| {'.'.join(path)} | {_TYPES.get(type(value), 'string')} | `{default}` | {about} |")
    return "\n".join(rows) + "\n"


def _leaves(values: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*above, key)
        # A mapping that Kubernetes reads is a value; one of ours is a group of them.
        if isinstance(value, dict) and value and not _is_theirs(path):
            yield from _leaves(value, path)
        else:
            yield path, value


def _is_theirs(path: tuple[str, ...]) -> bool:
    return path[-1] in ("resources", "podSecurityContext", "securityContext", "labels", "annotations")


def _comments(text: str) -> dict[tuple[str, ...], str]:
    """By path: the comment above."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        content = line.strip()
        if content.startswith("#"):
            above.append(content.removeprefix("#").strip())
        elif not content:
            above = []
        elif not content.startswith("-") and ":" in content:
            depth = (len(line) - len(line.lstrip())) // 2
            path[depth:] = [content.partition(":")[0]]
            if above:
                found[tuple(path)] = " ".join(above)
            above = []
    return found


def _described(path: tuple[str, ...], comments: dict[tuple[str, ...], str]) -> str:
    """The value's own comment, and those of the groups that it is the first of."""
    return " ".join(comments.pop(path[: length + 1]) for length in range(len(path)) if path[: length + 1] in comments)
