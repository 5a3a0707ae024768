"""DiLoCo for pytrees: each rank trains alone, and ranks average the changes of many steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain.adapter import Array
from ringtrain.diloco import DiLoCo as ArrayDiLoCo
from ringtrain.diloco import OnHostDiLoCo
from ringtrain.errors import ConfigurationError


class _PytreeLeaves:
    """Weights of a DiLoCo that are the leaves of a pytree. `now`: the present leaves by name."""

    def __init__(self, leaves: dict[str, Any]) -> None:
        self.now = leaves

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return [np.asarray(self.now[name]) for name in names]

    def write(self, name: str, values: Array) -> None:
        self.now[name] = jnp.asarray(np.array(values))


class _InnerPytree:
    """State of the inner optimizer, a pytree, as `StatefulObject`. `now`: the state after the last step."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def state_dict(self) -> list[Array]:
        return [np.array(leaf) for leaf in jax.tree.leaves(self.now)]

    def load_state_dict(self, leaves: Sequence[Array]) -> None:
        structure = jax.tree.structure(self.now)
        self.now = jax.tree.unflatten(structure, [jnp.asarray(np.array(leaf)) for leaf in leaves])


class DiLoCo(OnHostDiLoCo):
    """Train a pytree on each rank alone, and average the changes of many steps over the ranks.

        diloco = DiLoCo(params, outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)
        params = diloco.params()                        # rank 0's
        for batch in batches:
            params, state = inner_step(params, state, batch)    # your own, compiled or not
            params = diloco.step(params)
        params = diloco.finish(params)                  # the same on all ranks

    `params`: a pytree of floating-point arrays. `options`: options of `ringtrain.diloco.DiLoCo` (outer, sync_every,
    fragments, overlap_steps, mix, compression, bucket_bytes, sites). The attribute `outer` is a
    `ringtrain.diloco.DiLoCo`, with the outer weights by their paths in the tree and the state of synchronizations.

    With `elastic=True`, pass this object to a `ringtrain.elastic.State`. If `due` is True after a step, call the
    state's `commit()`, then use `params()`. Pass the inner optimizer's state (`inner`, a pytree) at the start and at
    each step: a commit copies it. Begin the function of `elastic.run` with `params()` and `inner`, which are those of
    the commit from which this rank continues.

    Call these methods between compiled steps, not inside of them. Each rank has its own inner optimizer state.
    Collective: every rank creates it with the same tree and arguments and takes the same number of steps;
    otherwise MismatchError is raised. Maturity: Experimental.
    """

    _host: Any

    def __init__(self, params: Any, *, inner: Any = None, **options: Any) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        leaves = {jax.tree_util.keystr(path): jnp.asarray(leaf) for path, leaf in paths}
        self._leaves = _PytreeLeaves(leaves)
        initial = {name: np.array(leaf) for name, leaf in leaves.items()}
        self._state, self._is_elastic = _InnerPytree(inner), bool(options.get("elastic"))
        state = None if inner is None else self._state
        self.outer = self._host = ArrayDiLoCo(self._leaves, initial=initial, inner=state, **options)

    def params(self) -> Any:
        """Return this rank's parameters, as a pytree of JAX arrays on the default device."""
        return jax.tree.unflatten(self._structure, self._leaves.now.values())

    def average(self, gradients: Any) -> Any:
        """Return `gradients`, a pytree of arrays, averaged over the ranks of this rank's site, for the inner step.

        If the rank trains alone, they are returned unchanged. Collective in the site.
        """
        if self.outer.site is None:
            return gradients
        leaves, structure = jax.tree.flatten(gradients)
        arrays = {f"{place}": np.array(leaf) for place, leaf in enumerate(leaves)}
        self.outer.average(arrays)
        return jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays.values()])

    @property
    def inner(self) -> Any:
        """State of the inner optimizer after the last step, or at the commit to which this rank rolled back."""
        return self._state.now

    def step(self, params: Any, samples: float = 1, inner: Any = None) -> Any:
        """Synchronize if due after an inner step on `samples` samples; return the parameters for the next step.

        `params`: the parameters after the inner step. `inner`: the inner optimizer's state after it.

        Raises ConfigurationError for another tree or a missing state of the inner optimizer, PeerLost if the ring
        failed, MismatchError if ranks took different numbers of steps.
        """
        if self._is_elastic and inner is None and jax.tree.leaves(self._state.now):
            raise ConfigurationError(
                "DiLoCo: step() was called without the state of the inner optimizer that DiLoCo was created with; "
                "pass inner=..."
            )
        self._take(params)
        self._state.now = self._state.now if inner is None else inner
        return self.params() if self.outer.step(samples) else params

    def finish(self, params: Any) -> Any:
        """Synchronize the changes of all inner steps up to `params`, and return the outer weights.

        Collective. Call it at the end of training and before an evaluation.
        """
        self._take(params)
        self.outer.finish()
        return self.params()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, parameters included, from which training continues bit for bit.

        Save the inner optimizer's state separately. Every rank saves its own state. Collective.
        """
        return self.outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Load the result of this rank's `state_dict()` and return its parameters. Not collective."""
        self.outer.load_state_dict(state)
        return self.params()

    def close(self) -> None:
        """Release memory and file descriptors."""
        self.outer.close()

    def _take(self, params: Any) -> None:
        """Store `params` as this rank's weights. Raises ConfigurationError if structure, shapes or dtypes changed."""
        leaves, structure = jax.tree.flatten(params)
        if structure != self._structure:
            raise ConfigurationError(
                f"DiLoCo: the parameters are {structure}; expected the tree with which DiLoCo was "
                f"created, {self._structure}"
            )
        leaves = [jnp.asarray(leaf) for leaf in leaves]  # JAX converts float64 of NumPy to float32
        for name, leaf in zip(self._leaves.now, leaves, strict=True):
            if (leaf.shape, leaf.dtype) != (self._leaves.now[name].shape, self._leaves.now[name].dtype):
                raise ConfigurationError(
                    f"DiLoCo: {name} is {leaf.dtype}{list(leaf.shape)}; expected "
                    f"{self._leaves.now[name].dtype}{list(self._leaves.now[name].shape)}, as at the start"
                )
        self._leaves.now = dict(zip(self._leaves.now, leaves, strict=True))
