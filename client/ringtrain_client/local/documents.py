"""Reader and writer of YAML files with the types of JSON, by the rules of kubectl."""

import math
import re
import sys
from collections.abc import Hashable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from ringtrain_operator.errors import ManifestUnreadable, shown
from ringtrain_operator.spec.base import MAX_DEPTH

# An object in etcd has at most 1.5 MiB.
MAX_BYTES = 4 << 20
# Values of a document with expanded anchors: about the limit of an object in etcd.
MAX_VALUES = 100_000

# JSON's numbers in Kubernetes are int64 or float64.
_INT64 = range(-(1 << 63), 1 << 63)
_INT_TAG = "tag:yaml.org,2002:int"
_FLOAT_TAG = "tag:yaml.org,2002:float"
_BOOL_TAG = "tag:yaml.org,2002:bool"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_JSON_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def read_documents(path: Path) -> list[Any]:
    """Return every document of the file, or of standard input for "-": dicts with string keys, lists and JSON scalars.

    A List, as `kubectl get` prints several objects, is replaced by its items.

    Raises ManifestUnreadable with the file, the line and the problem: a file that does not exist or is not YAML, a
    number or a string that JSON cannot represent, a duplicate key, a kind that is not a string, or a document that is
    deeper or larger than any manifest.
    """
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        raise ManifestUnreadable(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc
    if len(content) > MAX_BYTES:
        raise ManifestUnreadable(f"{path}: has more than {MAX_BYTES >> 20} MiB; expected a smaller file")
    try:
        read = [one for document in yaml.load_all(content, Loader=_ManifestLoader) for one in _document_items(document)]
    except _NotJson as exc:
        raise ManifestUnreadable(f"{path}: {exc}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ManifestUnreadable(f"{path}: {_yaml_error_text(exc, content)}") from exc
    for kind in (one.get("kind") for one in read if isinstance(one, dict)):
        if not isinstance(kind, str | None):
            raise ManifestUnreadable(f"{path}: kind: is {shown(kind)}; expected a text, such as DistributedTrainingJob")
    return read


def write_documents(documents: Iterable[Any]) -> str:
    """Return YAML that `read_documents` and kubectl read as the same values."""
    return yaml.dump_all(documents, Dumper=_ManifestDumper, sort_keys=False)


def _yaml_error_text(error: yaml.YAMLError | UnicodeDecodeError, content: bytes) -> str:
    """Return one line about why `content` is not YAML, with the line of the error."""
    if isinstance(error, yaml.reader.ReaderError) and error.encoding == "unicode":
        number = content.decode(errors="replace").count("\n", 0, error.position) + 1
        return f"line {number}: not YAML: it has the control character {chr(error.character)!r}"
    if isinstance(error, UnicodeDecodeError | yaml.reader.ReaderError):
        number = content.count(b"\n", 0, getattr(error, "start", None) or getattr(error, "position", 0)) + 1
        return f"line {number}: not YAML: it has bytes that are not text in UTF-8"
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "not YAML"
    lines = content.decode(errors="replace").splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if mark.line >= len(lines):
        problem = "the file ends before a quote or bracket is closed"
    elif line[mark.column : mark.column + 1] == "\t":
        problem = "the line has a tab; YAML is indented with spaces"
    elif isinstance(error, yaml.composer.ComposerError) and (alias := re.match(r"\*[^\s,\]}]+", line[mark.column :])):
        problem = f"{alias[0]} is not defined; put the value in quotes if it begins with *"
    else:
        problem = f"found {shown(line.strip())}; check indentation, quotes and colons here and in the line before"
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}"


def _document_items(document: Any) -> list[Any]:
    """Return the items of a document of kind List; for any other document a list with the document itself."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        items: list[Any] = document["items"]
        return items
    return [document]


class _NotJson(yaml.YAMLError):
    """Error: a YAML value is not valid JSON. The message has line and column."""

    def __init__(self, mark: yaml.Mark, problem: str) -> None:
        super().__init__(f"line {mark.line + 1}, column {mark.column + 1}: {problem}")


class _ManifestLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the types of JSON and with limits on depth and size."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.name = "the file"
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node of a document. Raises if it is nested too deeply."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _NotJson(self.get_mark(), f"the document is nested more than {MAX_DEPTH} levels deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the value of a whole document. Raises if its anchors make it endless or too large."""
        _check_size(node)
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of `node`. Raises if JSON has no such type."""
        if node.tag not in _JSON_TAGS:
            raise _error_at(node, f"the value has the tag {node.tag}; expected a type of JSON")
        try:
            made = super().construct_object(node, deep)
        except (ValueError, LookupError) as exc:
            raise _error_at(
                node, f"the value is {_node_text(node)}; expected a value of type {node.tag.rpartition(':')[2]}"
            ) from exc
        return _checked_node(node, made)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping with unique string keys. A merge key `<<` adds only keys that are not defined."""
        if not isinstance(node, yaml.MappingNode):
            raise _error_at(node, "the value has the tag of a mapping but is not a mapping")
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error_at(key, "a key is a list or a mapping; expected a string")
            if key.value in seen:
                raise _error_at(key, f"the key {_node_text(key)} appears twice in one mapping")
            seen.add(key.value)
        self.flatten_mapping(node)
        # YAML reads some keys as a number or a boolean (1, on); JSON's keys are strings.
        return {_checked_node(key, key.value): self.construct_object(value, deep) for key, value in node.value}


def _scalar_types() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return regular expressions for the types of unquoted scalars, by first character, as in kubectl (go-yaml).

    The expressions are PyYAML's, except that y and n are booleans, dates and 12:30:45 are strings, and underscores in
    numbers are ignored.
    """
    whole = r"0_*[xX]_*[0-9a-fA-F][0-9a-fA-F_]*|0_*[bB]_*[01][01_]*|0_*[oO]_*[0-7][0-7_]*|0[0-7_]*|[1-9][0-9_]*"
    part = r"(?:\._*[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?_*[0-9][0-9_]*)?"
    not_finite = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in (_TIMESTAMP_TAG, _INT_TAG, _FLOAT_TAG)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        found.setdefault(first, []).extend(
            [
                (_INT_TAG, re.compile(f"^[-+]?_*(?:{whole})$")),
                (_FLOAT_TAG, re.compile(rf"^(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|(?!\.)[-+]?_*{part}|{not_finite})$")),
            ]
        )
    for first in "yYnN":
        found[first] = [*found.get(first, []), (_BOOL_TAG, re.compile("^[yYnN]$"))]
    return found


def _construct_integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Return the integer of `node`. Raises if it needs more than 64 bits."""
    text = loader.construct_scalar(node).replace("_", "")
    sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
    if len(digits) > 80:  # before int() works on it; 64 binary digits fit
        raise _error_at(node, f"the number has {len(digits)} digits; JSON's whole numbers have at most 64 bits")
    if digits.isdigit() and digits.startswith("0"):
        digits = f"0o{digits}"
    return sign * int(digits, 0)


_ManifestLoader.yaml_implicit_resolvers = _scalar_types()
_ManifestLoader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
_ManifestLoader.add_constructor(_INT_TAG, _construct_integer)


class _ManifestDumper(yaml.SafeDumper):
    """PyYAML's safe dumper. It quotes strings that kubectl, PyYAML or YAML 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that repeated values are written in full instead of as YAML aliases."""
        return True


_ManifestDumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *rules] for first, rules in _scalar_types().items()
}


def _checked_node(node: yaml.Node, made: Any) -> Any:
    """Return `made`, the value of `node`. Raises for texts and numbers that JSON or a process cannot represent."""
    if isinstance(made, str) and (found := _NOT_TEXT.search(made)):
        raise _error_at(
            node, f"the string has the character {found.group(0)!r}, which strings in a manifest cannot have"
        )
    if isinstance(made, float) and not math.isfinite(made):
        raise _error_at(node, f"the number is {_node_text(node)}; expected a finite number")
    if isinstance(made, int) and made not in _INT64:
        raise _error_at(node, f"the number is {_node_text(node)}; JSON's whole numbers have at most 64 bits")
    return made


def _check_size(root: yaml.Node) -> None:
    """Raise if the document, with its anchors expanded, contains itself, is too deep or has more than MAX_VALUES
    values."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int) -> int:
        if id(node) in sizes:
            if sizes[id(node)] == 0:
                raise _error_at(node, "the value contains an alias of itself")
            return sizes[id(node)]
        if depth > MAX_DEPTH:
            raise _error_at(node, f"the document is nested more than {MAX_DEPTH} levels deep with its anchors expanded")
        sizes[id(node)] = 0
        total = 1 + sum(size(inner, depth + 1) for inner in _inner_nodes(node))
        if total > MAX_VALUES:
            raise _error_at(node, f"the document has more than {MAX_VALUES:,} values with its anchors expanded")
        sizes[id(node)] = total
        return total

    size(root, 0)


def _inner_nodes(node: yaml.Node) -> list[yaml.Node]:
    """Return the keys and values of a mapping, or the items of a sequence."""
    if isinstance(node, yaml.MappingNode):
        return [inner for pair in node.value for inner in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _error_at(node: yaml.Node, problem: str) -> _NotJson:
    """Return an error about `node` with its line and column."""
    return _NotJson(node.start_mark, problem)


def _node_text(node: yaml.Node) -> str:
    """Return the text of `node` in quotes for an error message, at most 40 characters of it."""
    text = str(node.value)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
