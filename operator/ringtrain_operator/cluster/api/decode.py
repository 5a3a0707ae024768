"""JSON of the API server, however deep: one object that somebody nested must not cost a whole list.

The API server stores objects of a custom resource up to 10,000 levels deep, and repeats the levels in
`metadata.managedFields`. Python's decoder ends with RecursionError at about 1,000 in version 3.11, and at 10,000 in
later ones: more than anything that walks a value by calling itself can take.
"""

import functools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from ...spec.base import spec_depth_of
from .errors import ServerError

# Kubernetes' own objects have about 20 levels, its OpenAPI document less than 50.
DEPTH_MAX = 200
_READ_WHOLE = 500
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)


def decode_api_answer(raw: bytes, shape: Any = None) -> Any:
    """The value of a JSON document; where it has more than 500 levels, null below level `DEPTH_MAX`.

    `shape`: a TypedDict whose names are all that is wanted, of objects that the API server bounds, such as pods; the
    value may have more where it has not this shape.
    Raises ServerError for what is no JSON.
    """
    if shape is not None:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
            return _answer_decoder(shape).decode(raw)
    try:
        with suppress(RecursionError):
            value = json.loads(raw)
            if spec_depth_of(value) <= _READ_WHOLE:
                return value
        return json.loads(b"".join(_pruned_answer(raw)))
    except ValueError as exc:
        raise ServerError(f"the API server's answer is no JSON: {exc}") from exc


@functools.cache
def _answer_decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _pruned_answer(raw: bytes) -> Iterator[bytes]:
    """The document's parts that are not too deep, with null for each value that is."""
    depth, kept_to = 0, 0
    for token in _STRING_OR_BRACKET.finditer(raw):
        if token[0] in (b"{", b"["):
            depth += 1
            if depth == DEPTH_MAX + 1:
                yield raw[kept_to : token.start()]
        elif token[0] in (b"}", b"]"):
            if depth == DEPTH_MAX + 1:
                yield b"null"
                kept_to = token.end()
            depth -= 1
    if depth <= DEPTH_MAX:
        yield raw[kept_to:]
