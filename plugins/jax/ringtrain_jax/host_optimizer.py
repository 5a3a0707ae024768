"""Optimizer with the interface of optax, whose state is in host memory and divided among the ranks."""

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
from ringtrain_jax.gradients import stream_gradient, submission_results


class Submitted(NamedTuple):
    """Placeholders for gradients that were passed to the host. Only `update` of the same optimizer uses them."""

    marks: tuple[Any, ...]


class Updates(NamedTuple):
    """New weights, which `update` returns for `apply_updates` of the same optimizer."""

    weights: tuple[Any, ...]


class HostOptimizer(OnHostOptimizer):
    """Average gradients over all ranks and update the weights in host memory during the backward pass.

        optimizer = hvd.HostOptimizer(AdamW(lr=1e-3), clip_norm=1.0)
        state = optimizer.init(params)

        @jax.jit
        def step(params, state, batch):
            loss, grads = optimizer.value_and_grad(loss_of)(params, batch)
            updates, state = optimizer.update(grads, state)
            return optimizer.apply_updates(params, updates), state, loss

    `rule`: update rule of `ringtrain.optim`. `groups`: pairs of a rule and a function that returns whether a
    parameter's path, such as `['layer']['b']`, has that rule instead of `rule`: the first match is used. `options`: see
    `ringtrain.optim.HostOptimizer` (bucket_bytes, sharded, accumulate, clip_norm, schedule, local, check_finite,
    compression, elastic, redundancy); with `accumulate`, weights change after that many updates. Each rank of
    `process_set` stores the state of 1/size of the elements.

    The weights of the host are authoritative. `value_and_grad` compares the given parameters with them and copies
    changes that a program has made in between, which costs one pass over them.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        groups: Sequence[tuple[Rule, Callable[[str], bool]]] = (),
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        inspect.signature(ArrayOptimizer).bind({}, rule, **options)  # raises TypeError for an unknown name
        self._rule, self._rules, self._groups = rule, tuple(groups), HostOptimizerGroups(process_set)
        self._options = options
        self._made: ArrayOptimizer | None = None
        self._names: list[str] = []
        self._structure: Any = None
        self._left: set[str] | None = None  # names of submitted gradients of a running call

    def init(self, params: Any) -> Any:
        """Begin to train the pytree `params` of floating-point arrays from the values of rank 0, which `params()`
        returns. float64 of numpy and Python becomes float32, as in JAX without x64. Return the state: the number of
        updates, int32 of shape (). Collective, outside of `jit`.

        Raises ConfigurationError for parameters that cannot be trained, MismatchError if ranks differ.
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
        # A program has copies of the values, which change only in update().
        self._made = ArrayOptimizer(
            arrays, self._rule, groups=groups, group=group, update_during_backward=True, **self._options
        )
        self._names, self._left = list(arrays), None
        return jnp.asarray(0, jnp.int32)

    def value_and_grad(self, fun: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
        """Return `jax.value_and_grad(fun, has_aux=has_aux)` of the first argument. Each gradient is passed to the host
        as soon as the backward pass has computed it, and a placeholder for `update` is returned instead. The value is
        not averaged over ranks. A parameter that `fun` does not use has zero gradients."""

        def run(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Submitted]:
            leaves = self._leaves(params, "params")
            (number,) = host_call("value_and_grad", self._begin, leaves, lambda: [()], [np.int32])

            def hooked(given: Sequence[Any]) -> Any:
                passed = [
                    stream_gradient(leaf, number, name, self._submit)
                    for leaf, name in zip(given, self._names, strict=True)
                ]
                return fun(jax.tree.unflatten(self._structure, passed), *args, **kwargs)

            value, marks = jax.value_and_grad(hooked, has_aux=has_aux)(leaves)
            return value, Submitted(tuple(marks))

        return run

    def update(self, grads: Any, state: Any, params: Any = None) -> tuple[Updates, Any]:
        """Return the argument of `apply_updates`, and the new state. `grads`: the result of `value_and_grad`; or a
        pytree of this rank's gradients, for which `params` is the current weights (default: those on the host)."""
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
        new_state, *new = host_call(
            "update", self._finish, [state, *submission_results(grads.marks)], lambda: shapes, dtypes
        )
        return Updates(tuple(new)), new_state

    def apply_updates(self, params: Any, updates: Updates) -> Any:
        """Return the new weights as a pytree with the structure of `params`."""
        if not isinstance(updates, Updates):
            raise ConfigurationError(
                f"apply_updates: expected the result of update() of a HostOptimizer, got {type(updates).__name__}"
            )
        self._leaves(params, "params")
        return jax.tree.unflatten(self._structure, updates.weights)

    def params(self) -> Any:
        """Return the weights in host memory as a pytree. Call it between updates, outside of `jit`."""
        return jax.tree.unflatten(self._structure, [jnp.array(self._host.weights[name]) for name in self._names])

    def state(self) -> Any:
        """Return the state that belongs to the weights of `params()`."""
        return jnp.asarray(self._host.updates, jnp.int32)

    def state_dict(self, root: int | None = None, error_feedback: bool = True) -> dict[str, Any]:
        """Gather weights and state of all ranks by path, as `ringtrain.optim.HostOptimizer.state_dict`. Collective,
        between updates."""
        jax.effects_barrier()
        return self._host.state_dict(root, error_feedback)

    def shard_dict(self, error_feedback: bool = True) -> dict[str, Any]:
        """Copy this rank's part of the state, for `ShardedCheckpoints`. Not collective."""
        jax.effects_barrier()
        return self._host.shard_dict(error_feedback)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and state from `state_dict` or `shard_dict`, saved with any number of ranks. Call it after
        `init`, on every rank with the same state; then continue with `params()` and `state()`. Not collective."""
        jax.effects_barrier()
        self._host.load_state_dict(state)

    def wait_for(self) -> None:
        """Wait until all running compiled functions have applied their updates. Raises the functions' errors."""
        jax.effects_barrier()
        self._host.wait_for()

    # Called by `ringtrain.elastic.State`; see `ringtrain.optim.HostOptimizer`.

    def rollback(self, to: int | None = None) -> int:
        """Set this rank's part of weights and state to its values after update `to`. Needs `elastic`. Discards
        gradients of a call that failed."""
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
            raise ConfigurationError(
                f"{what} is a {structure}; expected the tree that was passed to init(), {self._structure}"
            )
        return [jnp.asarray(leaf) for leaf in leaves]  # float64 of numpy is float32 in JAX

    def _begin(self, *params: Array) -> list[Array]:
        """Begin an update from the weights `params`; without them, from the weights on the host."""
        if self._left:
            raise RingtrainError(
                f"update() was not called with the gradients of {min(self._left)} and others before "
                "the next value_and_grad; call update() after each value_and_grad. If update() "
                "failed, resume from the last checkpoint in a new world"
            )
        host = self._host
        host.take_weights_from(dict(zip(self._names, params, strict=False)))
        self._left = set()
        return [np.asarray(host.updates, np.int32)]

    def _submit(self, _: int, name: str, gradient: Array) -> None:
        if self._left is None or name in self._left:
            raise ConfigurationError(
                f"value_and_grad: the gradient of {name} was computed twice in one call, as under vmap; remove "
                "the vmap and use the mean loss of the batch"
            )
        self._left.add(name)
        self._host.submit(name, gradient)

    def _finish(self, *_: Array) -> list[Array]:
        """Return the update count and the new weights. Weights are copied, because JAX may reuse an array's memory."""
        host = self._host
        if self._left is None:
            raise ConfigurationError(
                "update() was called twice with the same gradients; call value_and_grad before each update()"
            )
        for name in self._names:
            if name not in self._left:
                self._submit(0, name, np.zeros_like(host.weights[name]))
        self._left = None
        host.step()
        return [np.asarray(host.updates, np.int32), *(host.weights[name].copy() for name in self._names)]
