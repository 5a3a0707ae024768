"""Loader of digits for data workers; train_served.py passes its name, `loading:load_digits`."""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from train import Data, load


@functools.cache
def data() -> Data:
    """The images, read once in each loader process."""
    return load(None)


def load_digits(indices: NDArray[np.int64]) -> dict[str, Any]:
    """Images and labels of these samples. Here it would decode and augment what is too heavy for a rank."""
    return {"images": data().train_images[indices], "labels": data().train_labels[indices]}
