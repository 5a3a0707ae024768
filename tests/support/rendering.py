"""The chart, rendered by Helm."""

import sys
from pathlib import Path
from typing import Any

from support.commands import completed
from support.documents import documents

CHART = Path(__file__).parents[2] / "charts" / "ringtrain-operator"
HELM = Path(sys.executable).with_name("helm")


class HelmFailed(Exception):
    """Helm's error."""


def render(
    *values: str, release: str = "ringtrain", namespace: str = "ringtrain-system", serves: str = ""
) -> list[dict[str, Any]]:
    """The objects of the chart with `values` (each `key=value`, or `--option=...`). `serves`: an API version that
    the cluster has. Raises HelmFailed."""
    options = [value if value.startswith("--") else f"--set={value}" for value in values]
    options += [f"--api-versions={serves}"] if serves else []
    command = [str(HELM), "template", release, str(CHART), f"--namespace={namespace}", *options]
    done = completed(command)
    if done.returncode:
        raise HelmFailed(done.stderr)
    return documents(done.stdout)
