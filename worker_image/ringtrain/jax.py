"""Re-export of the JAX adapter of the plugin ringtrain-jax: `import ringtrain.jax as hvd`."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_jax")

from ringtrain_jax import *  # noqa: E402, F403 (for type checkers)
