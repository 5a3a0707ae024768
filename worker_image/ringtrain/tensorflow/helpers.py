"""What scripts take from Horovod's modules for TensorFlow beside collectives."""

from typing import Any


def vars_to_refs(vars: Any) -> Any:
    """Return references that can be keys for a variable, or nested tuples of them for nested lists."""
    return tuple(vars_to_refs(var) for var in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Undo `vars_to_refs`."""
    return [refs_to_vars(ref) for ref in refs] if isinstance(refs, tuple) else refs.deref()
