"""Rank in a task: `python -m ringtrain_clusters.tasks.rank FOLDER PICKLER` runs the function stored in FOLDER."""

import json
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path

from ringtrain.shared import contract
from ringtrain_clusters.tasks.agent import PLACE, RANK, RESULT, WORK


def main(folder: Path, pickler: str) -> None:
    """Run the function stored in `folder`, and store its pickled result there. Raises the function's errors."""
    os.environ.update(json.loads((folder / PLACE).read_text()))
    function, args, kwargs = pickle.loads((folder / WORK).read_bytes())
    result = import_module(pickler).dumps(function(*args, **kwargs))
    # The world may have changed in the meantime.
    (folder / RANK).write_text(f"{os.environ.get(contract.ENV_RANK, 0)} {os.environ.get(contract.ENV_SIZE, 1)}")
    part = folder / f"{RESULT}.part"
    part.write_bytes(result)
    part.rename(folder / RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
