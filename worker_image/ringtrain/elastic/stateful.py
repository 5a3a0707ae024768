"""Objects that return their state and load it."""

from typing import Any, Protocol, TypeGuard


class StatefulObject(Protocol):
    """An object that returns its state and loads it, as optimizers and schedules do."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def is_stateful(value: object) -> TypeGuard[StatefulObject]:
    """Whether `value` has both methods, or passes them on by `__getattr__`, which `isinstance` sees in Python 3.11
    alone."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
