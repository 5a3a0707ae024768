"""A multilayer perceptron in numpy whose backward pass hands out each gradient as soon as it is known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Trace:
    """Values of a forward pass that the backward pass needs: the input of every layer, and the class probabilities."""

    inputs: list[Floats]
    probabilities: Floats

    @property
    def predictions(self) -> NDArray[np.intp]:
        return self.probabilities.argmax(axis=1)


def initial_weights(widths: Sequence[int], seed: int) -> dict[str, Floats]:
    """Return weights and biases by name, in the order of the forward pass. Scaled after He et al. 2015."""
    random = np.random.default_rng(seed)
    weights: dict[str, Floats] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        kernel = random.normal(0.0, np.sqrt(2.0 / fan_in), (fan_in, fan_out))
        weights[f"dense{layer}/kernel"] = kernel.astype(np.float32)
        weights[f"dense{layer}/bias"] = np.zeros(fan_out, np.float32)
    return weights


def forward(weights: Mapping[str, Floats], images: Floats) -> Trace:
    """`images`: (batch, features). Dense layers with ReLU between them, softmax after the last."""
    layers = len(weights) // 2
    inputs, values = [], images
    for layer in range(layers):
        inputs.append(values)
        values = values @ weights[f"dense{layer}/kernel"] + weights[f"dense{layer}/bias"]
        if layer < layers - 1:
            values = np.maximum(values, 0)
    odds = np.exp(values - values.max(axis=1, keepdims=True))
    return Trace(inputs, odds / odds.sum(axis=1, keepdims=True))


def loss(trace: Trace, labels: NDArray[np.intp]) -> float:
    """Mean cross entropy over the batch."""
    chosen = trace.probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


def backward(weights: Mapping[str, Floats], trace: Trace, labels: NDArray[np.intp]) -> Iterator[tuple[str, Floats]]:
    """Yield (name, gradient) of the mean loss, from the last layer to the first.

    A layer's gradients are yielded after the last use of its weights: whoever takes a gradient may update the
    weight at once, while the layers below are still to come.
    """
    error = trace.probabilities.copy()
    error[np.arange(len(labels)), labels] -= 1
    error *= np.float32(1 / len(labels))
    for layer in reversed(range(len(trace.inputs))):
        values, error_here = trace.inputs[layer], error
        if layer:
            error = (error_here @ weights[f"dense{layer}/kernel"].T) * (values > 0)
        yield f"dense{layer}/bias", error_here.sum(axis=0)
        yield f"dense{layer}/kernel", values.T @ error_here
