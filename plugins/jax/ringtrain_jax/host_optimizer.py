"""An optimizer in the shape of optax's, whose state lives in host memory, spread over the ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ringtrain import ProcessSet, global_process_set
from ringtrain.adapter import Array, HostOptimizerGroups, OnHostOptimizer
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.optim import HostOptimizer as ArrayOptimizer
from ringtrain.optim.rules import Rule
from ringtrain_jax.calls import host_call
from ringtrain_jax.gradients import leaving, left


class Submitted(NamedTuple):
    """Gradients that are on the host: marks in their place, which nothing can be made of."""

    marks: tuple[Any, ...]


class Updates(NamedTuple):
    """The new weights, for `apply_updates` of the same optimizer."""

    weights: tuple[Any, ...]


class HostOptimizer(OnHostOptimizer):
    """Average gradients over all ranks and update the weights in host memory while the backward pass goes on.

        optimizer = hvd.HostOptimizer(AdamW(lr=1e-3), clip_norm=1.0)
        state = optimizer.init(params)

        @jax.jit
        def step(params, state, batch):
            loss, grads = optimizer.value_and_grad(loss_of)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optimizer.apply_updates(params, updates), state, loss

    `rule`: of `ringtrain.optim`. `groups`: pairs of a rule and of a function that says of a parameter's path, such
    as `['layer']['b']`, whether it has that rule in the place of `rule`: the first pair that does counts.
    `options`: those of `ringtrain.optim.HostOptimizer` (bucket_bytes, sharded, accumulate, clip_norm, schedule,
    local, check_finite, compression, elastic, redundancy); with `accumulate`, weights are new after that many
    updates. Each rank of `process_set` keeps the state of 1/size of the elements.

    The weights of the host count. `value_and_grad` looks whether the parameters it is given are those, and takes
    over what a program has made of them in between: at the price of one pass over them.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        groups: Sequence[tuple[Rule, Callable[[str], bool]]] = (),
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        inspect.signature(ArrayOptimizer).bind({}, rule, **options)  # raises TypeError for another name
        self._rule, self._rules, self._groups = rule, tuple(groups), HostOptimizerGroups(process_set)
        self._options = options
        self._made: ArrayOptimizer | None = None
        self._names: list[str] = []
        self._structure: Any = None
        self._left: set[str] | None = None  # whose gradients are here, of a call that has begun

    def init(self, params: Any) -> Any:
        """Begin to train the pytree `params` of floating-point arrays from rank 0's values, which `params()` has,
        as JAX has them: without x64, float64 of numpy and Python's floats are float32. Return the state, a count of
        updates: int32, of shape (). Collective, outside of `jit`.

        Raises ConfigurationError for what can't be trained, MismatchError where ranks differ.
        """
        paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        arrays = {jax.tree_util.keystr(path): np.array(jnp.asarray(leaf)) for path, leaf in paths}
        taken: set[str] = set()
        groups = []
        for rule, has in self._rules:
            names = [name for name in arrays if name not in taken and has(name)]
            taken.update(names)
            groups.append((rule, names))
        group = self._groups.first(self._options.get("elastic", False))
        # What a program has are values of its own, which are new in update() alone.
        self._made = ArrayOptimizer(
            arrays, self._rule, groups=groups, group=group, update_during_backward=True, **self._options
        )
        self._names, self._left = list(arrays), None
        return jnp.asarray(0, jnp.int32)

    def value_and_grad(self, fun: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
        """Return `jax.value_and_grad(fun, has_aux=has_aux)` of the first argument, whose gradients go to the host
        as soon as the backward pass has them. What stands in their place is for `update` alone. The value is this
        rank's own. A parameter that `fun` does not use has zeros."""

        def run(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Submitted]:
            leaves = self._leaves(params, "params")
            (number,) = host_call("value_and_grad", self._begin, leaves, lambda: [()], [np.int32])

            def hooked(given: Sequence[Any]) -> Any:
                passed = [
                    leaving(leaf, number, name, self._submit) for leaf, name in zip(given, self._names, strict=True)
                ]
                return fun(jax.tree.unflatten(self._structure, passed), *args, **kwargs)

            value, marks = jax.value_and_grad(hooked, has_aux=has_aux)(leaves)
            return value, Submitted(tuple(marks))

        return run

    def update(self, grads: Any, state: Any, params: Any = None) -> tuple[Updates, Any]:
        """Return what `apply_updates` takes, and the new state. `grads`: what `value_and_grad` gave, or a pytree
        of this rank's gradients, which leave now; with these, `params` counts as it does for `value_and_grad`."""
        if not isinstance(grads, Submitted):
            leaves = self._leaves(grads, "grads")
            known = [] if params is None else self._leaves(params, "params")
            (number,) = host_call("update", self._begin, known, lambda: [()], [np.int32])

            def submit(_: Array, *gradients: Array) -> list[Array]:
                for name, gradient in zip(self._names, gradients, strict=True):
                    self._submit(0, name, gradient)
                return [np.zeros((), np.int32)]

            (mark,) = host_call("update", submit, [number, *leaves], lambda: [()], [np.int32])
            grads = Submitted((mark,))
        weights = [self._host.weights[name] for name in self._names]
        shapes, dtypes = [(), *(one.shape for one in weights)], [np.int32, *(one.dtype for one in weights)]
        new_state, *new = host_call("update", self._finish, [state, *left(grads.marks)], lambda: shapes, dtypes)
        return Updates(tuple(new)), new_state

    def apply_updates(self, params: Any, updates: Updates) -> Any:
        """Return the new weights in the structure of `params`."""
        if not isinstance(updates, Updates):
            raise ConfigurationError(
                f"apply_updates: expected what update() of a HostOptimizer gave, got {type(updates).__name__}"
            )
        self._leaves(params, "params")
        return jax.tree.unflatten(self._structure, updates.weights)

    def params(self) -> Any:
        """The weights as they are on the host, as a pytree. Between updates, outside of `jit`."""
        return jax.tree.unflatten(self._structure, [jnp.array(self._host.weights[name]) for name in self._names])

    def state(self) -> Any:
        """The state that goes with `params()`."""
        return jnp.asarray(self._host.updates, jnp.int32)

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather weights and state of all ranks, by path. Collective, between updates; as of
        `ringtrain.optim.HostOptimizer.state_dict`."""
        jax.effects_barrier()
        return self._host.state_dict(root, error_feedback)

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of that, for `ShardedCheckpoints`. Not collective."""
        jax.effects_barrier()
        return self._host.shard_dict(error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set weights and state from what `state_dict` or `shard_dict` gave at any number of ranks; go on with
        `params()` and `state()`. Not collective: every rank loads the same, after `init`."""
        jax.effects_barrier()
        self._host.load_state_dict(state)

    def wait_for(self) -> None:
        """Return when what was compiled and runs has made its updates. Raises what made one fail."""
        jax.effects_barrier()
        self._host.wait_for()

    # What `ringtrain.elastic.State` calls, as of `ringtrain.optim.HostOptimizer`.

    def rollback(self, to: int | None = None) -> int:
        """Set this rank's part of weights and state to those after update `to`, with `elastic`; forget gradients
        of a call that has failed."""
        self._left = None
        return self._host.rollback(to)

    @property
    def _host(self) -> ArrayOptimizer:  # type: ignore[override]
        if self._made is None:
            raise ConfigurationError("the HostOptimizer has no parameters yet; call init(params) first")
        return self._made

    def _leaves(self, tree: Any, what: str) -> list[Any]:
        leaves, structure = jax.tree.flatten(tree)
        if self._host and structure != self._structure:
            raise ConfigurationError(f"{what} is a {structure}; expected what init() was given, {self._structure}")
        return [jnp.asarray(leaf) for leaf in leaves]  # float64 of numpy is float32 to JAX

    def _begin(self, *params: Array) -> list[Array]:
        """Begin the gradients of an update from `params`, the weights as a program has them now; none: as here."""
        if self._left:
            raise RingtrainError(
                f"gradients of {min(self._left)} and others are on the host, and update() was not called with "
                "them before the next ones: call it after each value_and_grad; where the call between failed, go "
                "on from the last checkpoint, in a new world"
            )
        host = self._host
        host.take_weights_from(dict(zip(self._names, params, strict=False)))
        self._left = set()
        return [np.asarray(host.updates, np.int32)]

    def _submit(self, _: int, name: str, gradient: Array) -> None:
        if self._left is None or name in self._left:
            raise ConfigurationError(
                f"value_and_grad: the gradient of {name} came twice in one call; expected no vmap around it: make "
                "the loss a mean over the batch"
            )
        self._left.add(name)
        self._host.submit(name, gradient)

    def _finish(self, *_: Array) -> list[Array]:
        """The count of updates and the new weights, copied: JAX may take an array's memory for a value's."""
        host = self._host
        if self._left is None:
            raise ConfigurationError("update() was called twice with the same gradients")
        for name in self._names:
            if name not in self._left:
                self._submit(0, name, np.zeros_like(host.weights[name]))
        self._left = None
        host.step()
        return [np.asarray(host.updates, np.int32), *(host.weights[name].copy() for name in self._names)]
