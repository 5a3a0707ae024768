"""Changes of Graphcore's two listings as in the documentation, with digits instead of MNIST, which is not available."""

import sys
from pathlib import Path

# Line before to line here; what has no line before is added after the imports.
CHANGES = {
    "import tensorflow as tf": "import tensorflow.compat.v1 as tf",
    "from tensorflow.python import ipu": "from ringtrain.tensorflow import ipu",
    "from tensorflow.python.ipu import horovod as hvd": "from ringtrain.tensorflow.ipu import horovod as hvd",
    "from tensorflow.python.ipu.horovod import ipu_horovod_strategy": (
        "from ringtrain.tensorflow.ipu.horovod import ipu_horovod_strategy"
    ),
}
ADDED = "tf.estimator = ipu.estimator"

DATA = """
import numpy as np
import tensorflow.compat.v1 as tf


def load_data():
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 2000).astype(np.uint8)
    images = np.zeros((2000, 28, 28), np.uint8)
    images[np.arange(2000), labels * 2, :] = 255
    return (images, labels), (images[:200], labels[:200])


tf.keras.datasets.mnist.load_data = load_data
"""


def ported(lines: list[str]) -> list[str]:
    """The listing as it runs here."""
    changed = [CHANGES.get(line, line) for line in lines]
    after = max(index for index, line in enumerate(changed) if line.startswith(("import ", "from ")))
    return [*changed[: after + 1], ADDED, *changed[after + 1 :]]


if __name__ == "__main__":
    listing = sys.argv.pop(1)
    text = "\n".join(ported(Path(__file__).with_name(listing).read_text().splitlines()))
    exec(compile(DATA, "data", "exec"))
    exec(compile(text, listing, "exec"), {"__name__": "__main__"})
