"""Types of frameworks in a checkpoint: a codec for each framework, found by entry points.

* `ringtrain.checkpoint.codecs`: by the name of the package whose types a codec encodes. It is loaded when a value of
  such a type is saved.
* `ringtrain.checkpoint.tags`: by the tag, without its `$`, of what a codec has encoded. It is loaded when such a value
  is read.
"""

import functools
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from numpy.typing import NDArray

ENCODERS: Final = "ringtrain.checkpoint.codecs"
DECODERS: Final = "ringtrain.checkpoint.tags"


class Codec(Protocol):
    """Encodes values as JSON-safe trees `{"$TAG": content, ...}` that refer to arrays."""

    def encode(self, value: Any, keep: Callable[[NDArray[Any]], str]) -> Mapping[str, Any] | None:
        """Return the tree of `value`, or None for a value that it does not know. `keep` stores an array and returns its
        name, for use as content."""

    def decode(self, tag: str, tree: Mapping[str, Any], content: Any) -> Any:
        """Return the value of `tree`. `tag`: without `$`. `content`: that of the tag, an array in place of its name."""


@functools.cache
def _names(group: str) -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=group)}


@functools.cache
def _loaded(group: str, name: str) -> Codec:
    codec: Codec = _names(group)[name].load()
    return codec


def encoder_of(value: object) -> Codec | None:
    """Return the codec of the package that `value`'s class, or a class that it is derived from, comes from."""
    known = _names(ENCODERS)
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    name = next((package for package in packages if package in known), None)
    return None if name is None else _loaded(ENCODERS, name)


def decoder_of(tag: str) -> Codec | None:
    """Return the codec that decodes `tag`, given without `$`; None: none does. Raises ModuleNotFoundError where its
    framework is not installed."""
    return _loaded(DECODERS, tag) if tag in _names(DECODERS) else None
