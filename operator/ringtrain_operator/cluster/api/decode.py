"""JSON decoder for API answers of any nesting depth. One deeply nested object must not make a whole list fail.

The API server stores custom resources of up to 10,000 levels, and repeats the levels in `metadata.managedFields`.
Python's decoder fails with RecursionError at about 1,000 levels in version 3.11, and at 10,000 in later ones. Recursive
functions fail earlier.
"""

import functools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from ...spec.base import nesting_depth
from .errors import ServerError

# Kubernetes' own objects have about 20 levels, its OpenAPI document fewer than 50.
DEPTH_MAX = 200
_READ_WHOLE = 500
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)


def decode_api_answer(raw: bytes, shape: Any = None) -> Any:
    """Decode a JSON document. If it has more than 500 levels, values below level `DEPTH_MAX` become null.

    `shape`: a TypedDict with all needed fields, for objects of limited depth such as pods. The result may have more
    fields if the document does not match the shape. Raises ServerError if the document is not JSON.
    """
    if shape is not None:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
            return _answer_decoder(shape).decode(raw)
    try:
        with suppress(RecursionError):
            value = json.loads(raw)
            if nesting_depth(value) <= _READ_WHOLE:
                return value
        return json.loads(b"".join(_pruned_answer(raw)))
    except ValueError as exc:
        raise ServerError("the API server's answer is not JSON; check the server's URL and proxies") from exc


@functools.cache
def _answer_decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _pruned_answer(raw: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON document, with null instead of each value that is nested too deeply."""
    depth, emitted_to = 0, 0
    for token in _STRING_OR_BRACKET.finditer(raw):
        if token[0] in (b"{", b"["):
            depth += 1
            if depth == DEPTH_MAX + 1:
                yield raw[emitted_to : token.start()]
        elif token[0] in (b"}", b"]"):
            if depth == DEPTH_MAX + 1:
                yield b"null"
                emitted_to = token.end()
            depth -= 1
    if depth <= DEPTH_MAX:
        yield raw[emitted_to:]
