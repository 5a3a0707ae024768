"""Handwritten digits for the examples: the 1797 images of `digits.csv.gz` (see `digits/train.py`), or MNIST's."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ringtrain.data import read_mnist


@dataclass(frozen=True)
class Digits:
    """Images as float32 in [0, 1] of shape (number, height, width), and labels as int64."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load_digits(data_dir: Path | None = None) -> Digits:
    """Load the bundled digits, or MNIST's IDX files from `data_dir`."""
    if data_dir is not None:
        train, test = read_mnist(data_dir)
        images = [part.images.astype(np.float32) / 255 for part in (train, test)]
        return Digits(images[0], train.labels.astype(np.int64), images[1], test.labels.astype(np.int64))
    rows, targets = bundled()
    order = np.random.default_rng(0).permutation(len(rows))
    images, labels = (rows[order].reshape(-1, 8, 8) / 16).astype(np.float32), targets[order].astype(np.int64)
    return Digits(images[360:], labels[360:], images[:360], labels[:360])


def bundled() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Images of shape (1797, 64) with values from 0 to 16, and their labels."""
    table = np.loadtxt(Path(__file__).parents[1] / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1]
