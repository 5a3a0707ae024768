"""Pytrees that each rank trains alone, and whose changes ranks average once in many steps."""

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
    """Weights that are the leaves of a pytree: those of now, by name."""

    def __init__(self, leaves: dict[str, Any]) -> None:
        self.now = leaves

    def read(self, names: Sequence[str]) -> Sequence[Array]:
        return [np.asarray(self.now[name]) for name in names]

    def write(self, name: str, values: Array) -> None:
        self.now[name] = jnp.asarray(np.array(values))


class _InnerPytree:
    """The inner optimizer's state: a pytree, of which leaves are sent. `now`: the one of the last step."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def state_dict(self) -> list[Array]:
        return [np.array(leaf) for leaf in jax.tree.leaves(self.now)]

    def load_state_dict(self, leaves: Sequence[Array]) -> None:
        structure = jax.tree.structure(self.now)
        self.now = jax.tree.unflatten(structure, [jnp.asarray(np.array(leaf)) for leaf in leaves])


class DiLoCo(OnHostDiLoCo):
    """Train a pytree on each rank alone, and average over ranks what many steps have changed.

        diloco = DiLoCo(params, outer=Nesterov(lr=0.7, momentum=0.9), sync_every=100)
        params = diloco.params()                        # rank 0's
        for batch in batches:
            params, state = inner_step(params, state, batch)    # your own, compiled or not
            params = diloco.step(params)
        params = diloco.finish(params)                  # the same on all ranks

    `params`: a pytree of floating-point arrays. `options`: as of `ringtrain.diloco.DiLoCo` (outer, sync_every,
    fragments, overlap_steps, mix, compression, bucket_bytes, sites). `outer`: that object, with the outer weights
    by their paths in the tree, and what it tells of synchronizations.

    With `elastic=True` give it to a `ringtrain.elastic.State`, and where `due` is True after a step call
    `state.commit()` of that, and take `params()`. Pass the inner optimizer's state (`inner`, a pytree) at the start
    and at each step: a commit copies it. Begin the function that `elastic.run` enters with `params()` and `inner`:
    those of the commit that this rank goes on from.

    Nothing here is for compiled code: call it between steps. The state of the inner optimizer is this rank's own.
    Collective: every rank makes it of the same tree with the same arguments, and makes as many steps, else
    MismatchError. Maturity: Experimental.
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
        """Return `gradients`, a pytree of arrays, averaged over the ranks of this rank's site, for its inner step;
        as they are where the rank trains alone. Collective in the site."""
        if self.outer.site is None:
            return gradients
        leaves, structure = jax.tree.flatten(gradients)
        arrays = {f"{place}": np.array(leaf) for place, leaf in enumerate(leaves)}
        self.outer.average(arrays)
        return jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays.values()])

    @property
    def inner(self) -> Any:
        """The inner optimizer's state of the last step, or of the commit that this rank went back to."""
        return self._state.now

    def step(self, params: Any, samples: float = 1, inner: Any = None) -> Any:
        """Return `params` after an inner step that was just taken, on so many samples, with what is due
        synchronized. `inner`: the inner optimizer's state after it.

        Raises ConfigurationError for another tree, or where the inner optimizer's state is missing, PeerLost when
        the ring failed, MismatchError where ranks took other numbers of steps.
        """
        if self._is_elastic and inner is None and jax.tree.leaves(self._state.now):
            raise ConfigurationError(
                "DiLoCo: step() got no state of the inner optimizer, and DiLoCo was made with one; pass inner=..., "
                "as at the start"
            )
        self._take(params)
        self._state.now = self._state.now if inner is None else inner
        return self.params() if self.outer.step(samples) else params

    def finish(self, params: Any) -> Any:
        """Return the outer weights, with all that inner steps have changed until `params`. Collective, at the end
        of training and before an evaluation."""
        self._take(params)
        self.outer.finish()
        return self.params()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank goes on from, to the bit, its parameters included; the inner optimizer's state is
        yours to save. Every rank saves its own. Collective."""
        return self.outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on from what this rank's `state_dict()` gave; return its parameters. Not collective."""
        self.outer.load_state_dict(state)
        return self.params()

    def close(self) -> None:
        """Give memory and descriptors back."""
        self.outer.close()

    def _take(self, params: Any) -> None:
        leaves, structure = jax.tree.flatten(params)
        if structure != self._structure:
            raise ConfigurationError(
                f"DiLoCo: the parameters are {structure}; expected the tree it was made of, {self._structure}"
            )
        leaves = [jnp.asarray(leaf) for leaf in leaves]  # float64 of numpy is float32 to JAX
        for name, leaf in zip(self._leaves.now, leaves, strict=True):
            if (leaf.shape, leaf.dtype) != (self._leaves.now[name].shape, self._leaves.now[name].dtype):
                raise ConfigurationError(
                    f"DiLoCo: {name} is {leaf.dtype}{list(leaf.shape)}; expected "
                    f"{self._leaves.now[name].dtype}{list(self._leaves.now[name].shape)}, as at the start"
                )
        self._leaves.now = dict(zip(self._leaves.now, leaves, strict=True))
