"""Codecs that save values of framework types in checkpoints. Plugins register them by entry points.

* `ringtrain.checkpoint.codecs`: named by the package whose types the codec encodes. Loaded when a value of such a type
  is saved.
* `ringtrain.checkpoint.tags`: named by the tag, without its `$`, that the codec decodes. Loaded when such a value is
  read.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from ringtrain.shared.plugins import entry_points_of

ENCODERS: Final = "ringtrain.checkpoint.codecs"
DECODERS: Final = "ringtrain.checkpoint.tags"


class Codec(Protocol):
    """Interface of a codec, which encodes values as JSON-safe trees `{"$TAG": content, ...}` that refer to arrays."""

    def encode(self, value: Any, keep: Callable[[NDArray[Any]], str]) -> Mapping[str, Any] | None:
        """Return the tree of `value`, or None if the codec does not support it.

        `keep` stores an array and returns its name, for use as content.
        """

    def decode(self, tag: str, tree: Mapping[str, Any], content: Any) -> Any:
        """Return the value of `tree`. `tag`: tag of the value without `$`.

        `content`: the tag's content, with arrays in place of their names.
        """


@functools.cache
def _names(group: str) -> dict[str, Any]:
    return {point.name: point for point in entry_points_of(group)}


@functools.cache
def _loaded(group: str, name: str) -> Codec:
    codec: Codec = _names(group)[name].load()
    return codec


def encoder_of(value: object) -> Codec | None:
    """Return the codec of the package that defines the class of `value` or a base class; None if there is none."""
    known = _names(ENCODERS)
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    name = next((package for package in packages if package in known), None)
    return None if name is None else _loaded(ENCODERS, name)


def decoder_of(tag: str) -> Codec | None:
    """Return the codec that decodes `tag` (without `$`); None if there is none.

    Raises ModuleNotFoundError if its framework is not installed.
    """
    return _loaded(DECODERS, tag) if tag in _names(DECODERS) else None
