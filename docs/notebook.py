"""Run docs/sdk.ipynb and keep what its cells put out.

python docs/notebook.py [NOTEBOOK OUTPUT]       # `make notebook`
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "sdk.ipynb"
# Of a cell: the machine may be busy.
CELL_S = 200


def execute(source: Path, target: Path) -> None:
    """Run all cells of `source` in an empty folder and write the notebook with their outputs to `target`."""
    notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=CELL_S, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, target)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:]]
    execute(*(given or [NOTEBOOK, NOTEBOOK]))
