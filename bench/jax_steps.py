"""One training step of JAX: with our gradients or optimizer, and over JAX's own collectives.

The backward pass hands over gradients of ResNet-50's 161 parameters that exist already. All update by AdamW:
optax's, of which every rank has the whole, or the host optimizer's.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.steps import resnet50_shapes

Work = Callable[[], None]
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def own_world(coordinator: str, ranks: int, rank: int) -> None:
    """JAX's collectives over gloo. Before JAX does anything."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, ranks, rank)


def meeting() -> Work:
    """Return a function that blocks until all processes have called it."""
    from jax.experimental.multihost_utils import sync_global_devices

    return lambda: sync_global_devices("bench")


def _params() -> dict[str, Any]:
    return {f"p{index:03}": jnp.ones(shape, jnp.float32) for index, shape in enumerate(resnet50_shapes())}


def _gradients() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = enumerate(resnet50_shapes())
    return {f"p{index:03}": jnp.asarray(random.standard_normal(shape, np.float32)) for index, shape in shapes}


@jax.custom_vjp
def _handed_over(weights: Any, gradients: Any) -> Any:
    return jnp.zeros(())


_handed_over.defvjp(
    lambda weights, gradients: (jnp.zeros(()), gradients),
    lambda gradients, upstream: (jax.tree.map(lambda gradient: gradient * upstream, gradients), None),
)


def our_step(api: str) -> Work:
    """`grad`: hvd.value_and_grad and optax; `host`: HostOptimizer."""
    import ringtrain.jax as hvd
    from ringtrain.optim import AdamW

    if api == "host":
        host = hvd.HostOptimizer(AdamW(lr=1e-3, weight_decay=1e-4))
        state = host.init(_params())

        def step(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
            _, grads = host.value_and_grad(_handed_over)(params, gradients)
            updates, state = host.update(grads, state)
            return host.apply_updates(params, updates), state

        return _repeated(step, host.params(), state, _gradients())
    optimizer = optax.adamw(1e-3)

    def step_of_optax(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        _, grads = hvd.value_and_grad(_handed_over)(params, gradients)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return _repeated(step_of_optax, _params(), optimizer.init(_params()), _gradients())


def own_step() -> Work:
    """Gradients of each process averaged over all of them by XLA, and optax."""
    optimizer, mesh = optax.adamw(1e-3), Mesh(np.asarray(jax.devices()), ("ranks",))
    alike, apart = PartitionSpec(), PartitionSpec("ranks")

    def step(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        grads = jax.grad(_handed_over)(params, jax.tree.map(lambda own: own[0], gradients))
        grads = jax.lax.pmean(grads, "ranks")
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    over_all = jax.shard_map(step, mesh=mesh, in_specs=(alike, alike, apart), out_specs=(alike, alike), check_vma=False)

    def whole(tree: Any) -> Any:
        sharding = NamedSharding(mesh, alike)
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree)

    def part(leaf: Any) -> Any:
        shape = (jax.device_count(), *leaf.shape)
        return jax.make_array_from_process_local_data(NamedSharding(mesh, apart), np.asarray(leaf)[None], shape)

    params = whole(_params())
    return _repeated(over_all, params, whole(optimizer.init(_params())), jax.tree.map(part, _gradients()))


def _repeated(step: Step, params: Any, state: Any, gradients: Any) -> Work:
    compiled, now = jax.jit(step, donate_argnums=(0, 1)), [params, state]

    def run() -> None:
        now[:] = jax.block_until_ready(compiled(*now, gradients))

    return run
