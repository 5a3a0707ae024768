"""Names of the container images."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def targets() -> list[str]:
    """Return the images of the Dockerfile, or those of them in RINGTRAIN_IMAGES."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    made = [
        stage for stage in stages if stage.startswith(("worker", "operator", "agent")) and not stage.endswith("-build")
    ]
    wanted = os.environ.get("RINGTRAIN_IMAGES", "all")
    return made if wanted == "all" else [stage for stage in made if stage in wanted.split()]


def version() -> str:
    """Return the version that chart, samples and images share."""
    chart = (ROOT / "charts/ringtrain-operator/Chart.yaml").read_text()
    found = re.search(r'^appVersion: "(.+)"$', chart, re.MULTILINE)
    return found[1]


def name_of(target: str) -> str:
    """Return the image of a target, as in the samples and the chart."""
    return f"ghcr.io/ringtrain/{target}:{version()}"
