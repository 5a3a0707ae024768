"""Interface of objects that return and load their state."""

from typing import Any, Protocol, TypeGuard


class StatefulObject(Protocol):
    """An object with `state_dict()` and `load_state_dict()`, such as an optimizer or a schedule."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def is_stateful(value: object) -> TypeGuard[StatefulObject]:
    """Return whether `value` has `state_dict` and `load_state_dict`, even if only its `__getattr__` provides them."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
