"""`python charts/release_check.py`: whether all that a release publishes is of one version, and of the tag's.

Of the standard library only: it runs before anything is installed. GITHUB_REF_NAME is the tag, such as v1.2.3.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions(root: Path) -> dict[str, str]:
    """The version of each file that states one."""
    found = {
        str(path.relative_to(root)): str(tomllib.loads(path.read_text())["project"]["version"])
        for path in sorted([*root.glob("*/pyproject.toml"), *root.glob("plugins/*/pyproject.toml")])
    }
    chart = root / "charts" / "ringtrain-operator" / "Chart.yaml"
    for field in ("version", "appVersion"):
        match = re.search(rf'^{field}: "?([^"\n]+)"?$', chart.read_text(), re.MULTILINE)
        assert match is not None, f"{chart} has no {field}"
        found[f"{chart.relative_to(root)} {field}"] = match[1]
    return found


def problem(found: dict[str, str], ref: str) -> str:
    """Return the error in a release of these versions from the tag or branch `ref`; empty if there is none."""
    listed = ", ".join(f"{name}: {version}" for name, version in found.items())
    if len(set(found.values())) > 1:
        return f"a release has one version, and these differ: {listed}"
    if re.match(r"v\d", ref) and ref.removeprefix("v") not in found.values():
        return f"the tag is {ref}, and the version is another: {listed}"
    return ""


if __name__ == "__main__":
    sys.exit(problem(versions(ROOT), os.environ.get("GITHUB_REF_NAME", "")) or 0)
