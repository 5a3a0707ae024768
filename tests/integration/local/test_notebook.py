"""docs/sdk.ipynb is run anew, in a real kernel, and puts out what it has on the page."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from support.deadlines import patient

ROOT = Path(__file__).parents[3]


def outputs(notebook: Path) -> list[tuple[str, Any]]:
    """Each code cell, with what it put out."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [
        (cell.source, [output.get("data", output.get("text", output)) for output in cell.outputs])
        for cell in cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_is_true(tmp_path: Path) -> None:
    """Tables, logs, the named failure: cell by cell."""
    notebook = ROOT / "docs" / "sdk.ipynb"
    script = [sys.executable, str(ROOT / "docs" / "notebook.py"), str(notebook), str(tmp_path / "out.ipynb")]
    subprocess.run(script, check=True, timeout=patient(220))
    kept = outputs(notebook)
    assert outputs(tmp_path / "out.ipynb") == kept
    shown = str(kept)
    assert '<progress value="40" max="40"></progress>' in shown
    assert "rank 1 of broken failed first: FileNotFoundError: /data/train.csv" in shown
