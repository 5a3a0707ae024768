"""A rank in a Spark task: `python -m ringtrain.spark.rank FOLDER` runs the function that FOLDER has."""

import json
import os
import pickle
import sys
from pathlib import Path

from ringtrain.spark.task import PLACE, RESULT, WORK


def main(folder: Path) -> None:
    """Run the function and leave what it returned. An error of the function's is this process's."""
    from pyspark import cloudpickle

    os.environ.update(json.loads((folder / PLACE).read_text()))
    function, args, kwargs = pickle.loads((folder / WORK).read_bytes())
    result = cloudpickle.dumps(function(*args, **kwargs))
    part = folder / f"{RESULT}.part"
    part.write_bytes(result)
    part.rename(folder / RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
