"""JAX's own collectives on the ranks of a job: arrays that are spread over all processes, and `jit` over them.

ringtrain run -np 2 python examples/frameworks/jax_distributed.py
dtj local manifests/samples/jax-distributed.yaml
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import ringtrain.jax  # noqa: F401  with it, initialize() needs no arguments

STEPS, ROWS = 200, 64


def loss_of(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


@jax.jit
def step(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, params, grads), loss


def main() -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(jax.process_index())
    own = rng.normal(size=(ROWS, 4)).astype("float32")
    x = jax.make_array_from_process_local_data(by_rows, own)
    y = jax.make_array_from_process_local_data(by_rows, own.sum(axis=1, keepdims=True))
    params = jax.device_put({"w": np.zeros((4, 1), "float32"), "b": np.zeros(1, "float32")}, everywhere)
    for _ in range(STEPS):
        params, loss = step(params, x, y)
    print(f"process {jax.process_index()} of {jax.process_count()}: loss {float(loss):.4f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
