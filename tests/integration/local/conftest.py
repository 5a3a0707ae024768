"""A fixture that starts `dtj local`."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.jobs import job
from support.local import Local, Start

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `dtj local` on a job with two workers of one rank that run `command`; `spec` as in a manifest."""
    started: list[Local] = []

    def begin(*command: str, **spec: Any) -> Local:
        manifest = job("t", **spec)
        manifest["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = list(command)
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(manifest))
        (tmp_path / "tmp").mkdir()
        mark = str(uuid.uuid4())
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "dtj"), "local", str(path), "--run-dir", str(tmp_path / "runs")],
            env={**os.environ, "TEST_MARK": mark, "TMPDIR": str(tmp_path / "tmp")},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(Local(process, mark, tmp_path, path))
        return started[-1]

    yield begin
    for local in started:
        local.process.kill()
        for process in local.processes():
            process.kill()
        local.process.communicate()
