"""JSON that is too deep for Python's decoder is decoded but for what is too deep."""

import json
from typing import Any

import pytest

from ringtrain_operator.cluster.api.decode import DEPTH_MAX, decode_api_answer
from ringtrain_operator.cluster.api.errors import ServerError

LEVELS = 9_900  # what the API server stores at most is 10,000


def nested(opening: str, closing: str, innermost: str = "1") -> str:
    """`innermost` under so many levels."""
    return opening * LEVELS + innermost + closing * LEVELS


def depth(value: Any) -> int:
    """Return the number of nested levels in `value`."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@pytest.mark.parametrize(
    "deep",
    [
        nested("[", "]", ""),
        nested('{"a":', "}"),
        nested('{"b":1,"a":[', '],"c":{}}'),
        nested('{"]}\\"[":', "}", '"}}]\\\\"'),
    ],
    ids=["lists", "objects", "mixed", "brackets-in-strings"],
)
def test_what_is_too_deep_becomes_null(deep: str) -> None:
    """The values next to a value that is too deep stay whole."""
    found = decode_api_answer(f'{{"items":[{{"name":"a"}},{{"spec":{deep}}},{{"name":"b","spec":{deep}}}]}}'.encode())
    assert found["items"][0] == {"name": "a"}
    assert found["items"][2]["name"] == "b"
    assert depth(found) == DEPTH_MAX


def test_every_python_reads_as_deep() -> None:
    """The decoder of 3.11 ends at 1,000 levels, those of later versions at 10,000."""
    deep = f'{{"spec":{"[" * 600}{"]" * 600}}}'.encode()
    assert depth(decode_api_answer(deep)) == DEPTH_MAX


def test_what_is_not_too_deep_is_decoded_as_it_is() -> None:
    """Also where it is deeper than what is kept of a document that is."""
    document = json.loads("[" * (DEPTH_MAX + 50) + "]" * (DEPTH_MAX + 50))
    assert decode_api_answer(json.dumps(document).encode()) == document


@pytest.mark.parametrize("raw", [b"", b"<html>", b'{"items":', b"\xff", nested("[", "").encode()])
def test_what_is_no_json_is_an_api_error(raw: bytes) -> None:
    """A proxy's page, an answer that was cut off."""
    with pytest.raises(ServerError, match="is not JSON"):
        decode_api_answer(raw)
