"""The progress that Keras itself prints, as a run's progress."""

import json
import sys
from pathlib import Path

import pytest
from frameworks.warm_python import shared_python
from support.commands import completed
from support.needs import need

PROGRAM = """
import sys
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
x = np.random.default_rng(0).random((64, 3), "float32")
kept = model.fit(x, x.sum(1), epochs=3, batch_size=8, validation_data=(x, x.sum(1)), verbose=int(sys.argv[1]))
model.evaluate(x, x.sum(1), batch_size=4, verbose=int(sys.argv[1]))
open("loss", "w").write(str(kept.history["loss"][-1]))
"""


@pytest.mark.parametrize("verbose", [1, 2], ids=["bar", "line"])
def test_keras_prints_its_progress(verbose: int, tmp_path: Path) -> None:
    """Steps of all epochs and the last loss are those of `fit`, not of the evaluation after it."""
    need("keras")
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["run", "-np", "1", "--name", "t", shared_python("keras"), "train.py", str(verbose)]
    done = completed([sys.executable, "-m", "ringtrain", *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in (tmp_path / "runs/local/t/1/metrics.jsonl").read_text().splitlines()]
    assert (rows[-1]["step"], rows[-1]["totalSteps"], rows[-1]["epoch"], rows[-1]["unit"]) == (24, 24, 3, "steps")
    assert rows[-1]["loss"] == pytest.approx(float((tmp_path / "loss").read_text()), abs=1e-4)
    assert set(rows[-1]["metrics"]) == {"mae", "val_loss", "val_mae"}
    assert "steps  24/24, loss" in done.stderr
