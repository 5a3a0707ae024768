"""ringtrain.jax does what one process does on the inputs of all ranks, in worlds of one to three ranks."""

import pytest
from frameworks.harness import Checks, Scenarios
from support.needs import need

need("jax", "optax")

# What takes longest here is compiling.
QUICKLY = (("XLA_FLAGS", "--xla_backend_optimization_level=0"),)
MODULES = ("jax_collectives", "jax_training", "jax_host_optimizer", "jax_trees", "jax_diloco")
CHECKS = Checks("optax", MODULES, QUICKLY)
SCRIPTS = {module: Checks("optax", (module,), QUICKLY) for module in ("jax_scripts", "flax_scripts")}
ELASTIC = {module: Scenarios("optax", module, QUICKLY) for module in ("jax_elastic", "flax_elastic")}
any_size = pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"ranks-{size}")


@pytest.mark.sampled(1, of="size", each="check", one_in=3, can_run=lambda size: size > 1)
@pytest.mark.parametrize("check", CHECKS.names())
@any_size
def test_jax(check, size, among):
    assert not CHECKS.failure(check, size, among)


@pytest.mark.sampled(1, of="size", each="check", one_in=8)
@pytest.mark.parametrize("check", [name for checks in SCRIPTS.values() for name in checks.names()])
@any_size
def test_script(check, size, among):
    """As people write it, with JAX, optax and Flax: what one process has on the joined batches."""
    module = check.partition(".")[0]
    need(module.partition("_")[0])
    assert not SCRIPTS[module].failure(check, size, tuple(name for name in among if name.startswith(module)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("module", "scenario"), [(module, name) for module, one in ELASTIC.items() for name in one.names()]
)
def test_elastic(module, scenario):
    """Weights are to the bit those of a training that nothing has disturbed."""
    need(module.partition("_")[0])
    assert not ELASTIC[module].failure(scenario)
