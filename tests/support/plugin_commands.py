"""Commands of plugins, and the core's programs without plugins."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from support.commands import completed

ROOT = Path(__file__).parents[2]

# Runs a program that finds only the entry points of one distribution, given by its pyproject.toml.
_CORE_ALONE = """
import importlib.metadata as metadata, sys, tomllib
groups = tomllib.loads(open(sys.argv.pop(1)).read())["project"]["entry-points"]
metadata.entry_points = lambda **chosen: metadata.EntryPoints(
    metadata.EntryPoint(name, value, group) for group, points in groups.items() for name, value in points.items()
).select(**chosen)
"""


def commands_of_plugins(group: str) -> dict[str, str]:
    """The package of each command that a plugin of this repository registers in `group`."""
    found = {}
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        for table in tomllib.loads(file.read_text())["project"].get("entry-points", {}).get(group, {}).values():
            module, _, name = table.partition(":")
            found |= {one.name: module.partition(".")[0] for one in getattr(import_module(module), name)}
    return found


def run_core_alone(folder: str, program: str, *words: str) -> Any:
    """Run the Python code `program` of the distribution in `folder` as if no plugin were installed."""
    return completed([sys.executable, "-c", _CORE_ALONE + program, str(ROOT / folder / "pyproject.toml"), *words])
