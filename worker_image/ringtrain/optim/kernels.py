"""Arithmetic of updates on all elements, in numpy. Its speed matters most in the optimizer.

`NumpyOptimizerKernels` processes the arrays in cache-sized blocks, so that the dozen passes of an update read main
memory once. Every operation is a correctly rounded IEEE operation on one element, so results do not depend on the
bounds of a block or shard.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringtrain.optim.layout import ParamSpec

Floats = NDArray[np.floating[Any]]
Sums = NDArray[np.float64]

# 64 Ki elements: five float32 blocks (weights, gradients, two moments, scratch) fill a 1.25 MiB level-2 cache. One
# AdamW step on 25 M parameters takes 75 ms, and at least 145 ms in whole-array passes.
BLOCK = 64 * 1024


@dataclass(frozen=True)
class OwnedBucketPart:
    """Arrays with the elements of one bucket that this rank updates: flat, equally long, float32 or float64.

    `gradients` are consumed: kernels may use them as scratch. `spec`: the parameter's spec, for a rule that needs it.
    """

    weights: Floats
    gradients: Floats
    state: Mapping[str, Floats]
    spec: ParamSpec | None = None

    def cut(self, where: slice, spec: ParamSpec | None = None) -> "OwnedBucketPart":
        """Return the elements `where` of this part as a new part that shares the memory."""
        state = {name: values[where] for name, values in self.state.items()}
        return OwnedBucketPart(self.weights[where], self.gradients[where], state, spec)

    def blocks(self) -> Iterator["OwnedBucketPart"]:
        for start in range(0, self.weights.size, BLOCK):
            yield self.cut(slice(start, start + BLOCK))


@dataclass(frozen=True)
class SgdTerms:
    """Coefficients of one SGD step. `scale`: factor that converts the sum over ranks to the gradient."""

    rate: float
    scale: float
    momentum: float
    nesterov: bool
    decay: float


@dataclass(frozen=True)
class AdamTerms:
    """Coefficients of one Adam or LAMB step, including bias corrections.

    `coupled_decay` is added to the gradient (L2), `decoupled_decay` to the direction (AdamW, LAMB). `correction1`,
    `correction2`: 1 - beta ** t.
    """

    rate: float
    scale: float
    beta1: float
    beta2: float
    epsilon: float
    coupled_decay: float
    decoupled_decay: float
    correction1: float
    correction2: float


class OptimizerKernels(Protocol):
    """Interface of the arithmetic of update rules. Results are bitwise equal however the arrays are divided among
    ranks."""

    def sgd(self, part: OwnedBucketPart, terms: SgdTerms) -> None:
        """Update weights and the state "momentum", which is absent if the momentum is 0."""

    def adam(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        """Update weights and the states "mean" and "square"."""

    def lamb_direction(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        """Update the states "mean" and "square"; write the direction (without trust ratio) to `part.gradients`."""

    def descend(self, weights: Floats, direction: Floats, rate: float) -> None:
        """Compute `weights -= rate * direction` in place. `direction` may be overwritten."""

    def follow(self, master: Floats, weights: NDArray[Any]) -> None:
        """Copy to `master` (float32) those half-precision `weights` that differ from the rounded `master`.

        These were changed from outside.
        """

    def square_sums(self, values: Floats, edges: NDArray[np.intp]) -> Sums:
        """Return the sum of squares, in float64, of each segment `values[edges[i]:edges[i + 1]]` of 1 to 128 elements.

        The sum is the first square plus `numpy.add.reduce` of the others.
        """


class NumpyOptimizerKernels:
    """Implementation of `OptimizerKernels` in numpy. Not thread-safe, because all calls use the same scratch memory."""

    def __init__(self) -> None:
        kinds: tuple[type[np.floating[Any]], ...] = (np.float32, np.float64)
        self._scratch: dict[np.dtype[Any], Floats] = {np.dtype(kind): np.empty(BLOCK, kind) for kind in kinds}

    def sgd(self, part: OwnedBucketPart, terms: SgdTerms) -> None:
        for block in part.blocks():
            weights, gradients = block.weights, block.gradients
            scratch = self._scratch[weights.dtype][: weights.size]
            np.multiply(gradients, terms.scale, out=gradients)
            if terms.decay:
                np.add(gradients, np.multiply(weights, terms.decay, out=scratch), out=gradients)
            if terms.momentum:
                velocity = block.state["momentum"]
                np.multiply(velocity, terms.momentum, out=velocity)
                np.add(velocity, gradients, out=velocity)
                if terms.nesterov:
                    np.add(gradients, np.multiply(velocity, terms.momentum, out=scratch), out=gradients)
                else:
                    gradients = velocity
            np.subtract(weights, np.multiply(gradients, terms.rate, out=scratch), out=weights)

    def adam(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        for block in part.blocks():
            weights = block.weights
            scratch = self._scratch[weights.dtype][: weights.size]
            self._moments(block, terms, scratch)
            np.divide(block.state["mean"], scratch, out=scratch)
            np.multiply(scratch, terms.rate / terms.correction1, out=scratch)
            if terms.decoupled_decay:
                np.multiply(weights, 1.0 - terms.rate * terms.decoupled_decay, out=weights)
            np.subtract(weights, scratch, out=weights)

    def lamb_direction(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        for block in part.blocks():
            direction = block.gradients
            scratch = self._scratch[direction.dtype][: direction.size]
            self._moments(block, terms, scratch)
            np.divide(block.state["mean"], scratch, out=direction)
            np.multiply(direction, 1.0 / terms.correction1, out=direction)
            if terms.decoupled_decay:
                np.add(direction, np.multiply(block.weights, terms.decoupled_decay, out=scratch), out=direction)

    def descend(self, weights: Floats, direction: Floats, rate: float) -> None:
        np.multiply(direction, rate, out=direction)
        np.subtract(weights, direction, out=weights)

    def follow(self, master: Floats, weights: NDArray[Any]) -> None:
        rounded = master.astype(weights.dtype)
        differs = rounded.view(np.uint16) != weights.view(np.uint16)
        if differs.any():
            master[differs] = weights[differs]

    def square_sums(self, values: Floats, edges: NDArray[np.intp]) -> Sums:
        sums = np.empty(edges.size - 1, np.float64)
        per_block = 512  # segments: 64 Ki elements in all
        for first in range(0, sums.size, per_block):
            block = edges[first : first + per_block + 1]
            wide = values[int(block[0]) : int(block[-1])].astype(np.float64)
            with np.errstate(over="ignore"):  # the caller reports an infinite norm
                np.multiply(wide, wide, out=wide)
                sums[first : first + per_block] = np.add.reduceat(wide, block[:-1] - block[0])
        return sums

    @staticmethod
    def _moments(block: OwnedBucketPart, terms: AdamTerms, scratch: Floats) -> None:
        """Update the mean and the mean square of the gradient in place; write the divisor of the mean to `scratch`."""
        gradients, mean, square = block.gradients, block.state["mean"], block.state["square"]
        np.multiply(gradients, terms.scale, out=gradients)
        if terms.coupled_decay:
            np.add(gradients, np.multiply(block.weights, terms.coupled_decay, out=scratch), out=gradients)
        np.multiply(mean, terms.beta1, out=mean)
        np.add(mean, np.multiply(gradients, 1.0 - terms.beta1, out=scratch), out=mean)
        np.multiply(gradients, gradients, out=gradients)
        np.multiply(square, terms.beta2, out=square)
        np.add(square, np.multiply(gradients, 1.0 - terms.beta2, out=gradients), out=square)
        np.sqrt(square, out=scratch)
        np.multiply(scratch, terms.correction2**-0.5, out=scratch)
        np.add(scratch, terms.epsilon, out=scratch)
