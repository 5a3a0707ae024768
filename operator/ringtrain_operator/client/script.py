"""Training code as text: a file, or the source of a function. Nothing is ever pickled."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import re
import symtable
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import shown
from .errors import ScriptUnusable

# What the API server takes in one ConfigMap.
MAX_BYTES = 1 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


@dataclass(frozen=True)
class Script:
    """A Python file to run: its name, its text, and the file on this machine that it was read from, if any."""

    name: str
    text: str
    path: Path | None = None


def read_script(path: str | Path) -> Script:
    """The script in a file of this machine. Raises ScriptUnusable."""
    file = Path(path)
    if not _KEY.fullmatch(file.name):
        raise ScriptUnusable(f"{file}: the file's name may have letters, digits, '-', '_' and '.' only")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        hint = "a script that the image has is named with in_image=True"
        raise ScriptUnusable(f"{file}: {reason}; {hint}") from exc
    return _checked(Script(file.name, text, file.resolve()))


def function_script(func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Script:
    """A script that defines `func` from its source and calls it. Raises ScriptUnusable.

    The function must stand by itself: it imports what it uses, within. Arguments are JSON values.
    """
    definition, source = _definition(func)
    _check_names(definition, source)
    given = f"*json.loads({_json('args', list(args))!r}), **json.loads({_json('kwargs', dict(kwargs))!r})"
    text = (
        "from __future__ import annotations\n\n"
        f'{source}\n\nif __name__ == "__main__":\n    import json\n\n    {definition.name}({given})\n'
    )
    return _checked(Script(f"{definition.name}.py", text))


def _definition(func: Callable[..., object]) -> tuple[ast.FunctionDef, str]:
    """The function's `def` and its source, from the first column on."""
    name = getattr(func, "__name__", type(func).__name__)
    if not inspect.isfunction(func):
        raise ScriptUnusable(f"{name} is a {type(func).__name__}; give a function made by def, or a file")
    if name == "<lambda>":
        raise ScriptUnusable("a lambda has no name to call it by; give a function made by def")
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
        raise ScriptUnusable(
            f"{name} is a coroutine or a generator; give a function that trains when it is called"
        )
    if hasattr(func, "__wrapped__"):
        raise ScriptUnusable(
            f"{name} is decorated, and its decorator is not in its source; give the bare function"
        )
    if func.__closure__:
        held = ", ".join(func.__code__.co_freevars)
        raise ScriptUnusable(f"{name} uses {held} of the function around it; pass them with args or kwargs")
    try:
        source = textwrap.dedent(inspect.getsource(func))
        [node] = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError) as exc:
        message = f"the source of {name} cannot be read ({exc}); define it in a file or in a notebook's cell"
        raise ScriptUnusable(message) from exc
    if not isinstance(node, ast.FunctionDef):
        raise ScriptUnusable(f"{name} does not stand in a def of its own; give a function made by def")
    if node.decorator_list:
        raise ScriptUnusable(
            f"{name} is decorated with {ast.unparse(node.decorator_list[0])}; give the bare function"
        )
    return node, source


def _check_names(definition: ast.FunctionDef, source: str) -> None:
    """Refuse a function that uses what only the module around it has: in a script of its own that is missing."""
    table = symtable.symtable("from __future__ import annotations\n" + source, definition.name, "exec")
    used = {name for inner in _tables(table) for name in _globals(inner)}
    missing = sorted(used - {definition.name, "annotations", "__name__", "__file__"} - set(dir(builtins)))
    if missing:
        names = ", ".join(missing)
        message = f"{definition.name} uses {names}, which it does not define; import or define within the function"
        raise ScriptUnusable(f"{message}, or pass values with args or kwargs")


def _tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    """A scope and all within it; annotations, which are never evaluated, have scopes of their own."""
    inner = [found for child in table.get_children() for found in _tables(child)]
    return inner if "annotation" in str(table.get_type()).lower() else [table, *inner]


def _globals(table: symtable.SymbolTable) -> set[str]:
    top = table.get_type() == "module"
    return {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}


def _json(what: str, value: Any) -> str:
    """`value` as JSON that reads back the same."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as exc:
        raise ScriptUnusable(f"{what}: {exc}; a function's arguments are JSON values") from exc
    if json.loads(text) != value:
        raise ScriptUnusable(f"{what} is {shown(value)}, which JSON reads back as {shown(json.loads(text))}")
    return text


def _checked(script: Script) -> Script:
    size = len(script.text.encode())
    if size > MAX_BYTES:
        message = f"{script.name} has {size} bytes, and a script may have {MAX_BYTES}"
        raise ScriptUnusable(f"{message}: put it into the image and name it with in_image=True")
    return script
