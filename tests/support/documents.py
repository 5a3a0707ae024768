"""YAML for tests, read by libyaml if PyYAML has it, which takes a fifth of the time for a chart with its CRDs."""

from pathlib import Path
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str | Path) -> list[Any]:
    """Return all documents of a text or a file that are not empty."""
    content = text.read_text() if isinstance(text, Path) else text
    return [one for one in yaml.load_all(content, Loader=LOADER) if one]
