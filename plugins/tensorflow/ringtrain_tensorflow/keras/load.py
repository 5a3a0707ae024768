"""Loading of a saved Keras model for training on many ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain_tensorflow.compression import Compression, Compressor
from ringtrain_tensorflow.keras.api import IS_KERAS_2, keras
from ringtrain_tensorflow.keras.host_saved import STATE, updates_without_state
from ringtrain_tensorflow.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model, and wrap its optimizer, including its state, as a distributed optimizer.

    `filepath`: file that `model.save` wrote. `custom_optimizers`: optimizer classes of the model that are not Keras'
    own. `custom_objects`: other classes and functions, by name. `compression`: compression of gradients. `legacy_opts`:
    whether the model was saved with a legacy optimizer of Keras 2; Keras 3 has none.

    Raises ConfigurationError if the file has no state for the optimizer, for example after training with a
    `HostOptimizer`.
    """
    if legacy_opts and not IS_KERAS_2:
        raise ConfigurationError("load_model: legacy_opts is True; expected False, Keras 3 has no legacy optimizers")
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()} | dict(custom_objects or {})
    with _keras_optimizers_without_state() as without:
        model = keras.models.load_model(filepath, custom_objects=known)
    if without:
        raise ConfigurationError(
            f"load_model: {filepath} has no state for a DistributedOptimizer, since a HostOptimizer trained the model; "
            "call keras.models.load_model(..., compile=False), compile with HostOptimizer and call optimizer.build() "
            "as at the start, then model.load_weights() of the same file or optimizer.load_state_dict()"
        )
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


@contextmanager
def _keras_optimizers_without_state() -> Iterator[list[Any]]:
    """Context that yields a list, filled with optimizers whose state is missing in the file that Keras loads although
    they had made updates. Keras itself only warns."""
    kind, without = keras.optimizers.Optimizer, []
    load = kind.load_own_variables

    def load_own_variables(self: Any, store: Any) -> None:
        is_other = len(store.keys()) != len(self.variables)
        if is_other and (STATE in store.keys() or updates_without_state(store)):  # noqa: SIM118
            without.append(self)
        load(self, store)

    kind.load_own_variables = load_own_variables
    try:
        yield without
    finally:
        kind.load_own_variables = load
