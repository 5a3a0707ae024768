"""Training code as text: a file, or the source of a function. Nothing is ever pickled."""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import json
import re
import symtable
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ringtrain_operator.errors import shown

from .errors import ScriptUnusable

# What the API server takes in one ConfigMap.
MAX_BYTES = 1 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
# A function within another one is indented. Taking that away would change its texts of several lines, too.
_INDENTED = "if True:\n"


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
    return _checked_script(Script(file.name, text, file.resolve()))


def function_script(func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Script:
    """A script that defines `func` from its source and calls it. Raises ScriptUnusable.

    The function must stand by itself: it imports what it uses, within. Arguments are JSON values.
    """
    definition, source = _script_definition(func)
    _check_script_names(definition, source, func.__globals__)
    given = (
        f"*__import__('json').loads({_script_json('args', list(args))!r}), "
        f"**__import__('json').loads({_script_json('kwargs', dict(kwargs))!r})"
    )
    text = (
        f'from __future__ import annotations\n\n{source}\n\nif __name__ == "__main__":\n'
        f"    {definition.name}({given})\n"
    )
    # Not the function's own name: where a script is called random.py, `import random` finds the script.
    return _checked_script(Script(re.sub(r"[^a-zA-Z0-9_]", "_", definition.name) + "_.py", text))


def _script_definition(func: Callable[..., object]) -> tuple[ast.FunctionDef, str]:
    """The function's `def`, and statements that define it."""
    name = getattr(func, "__name__", type(func).__name__)
    if not inspect.isfunction(func):
        raise ScriptUnusable(f"{name} is a {type(func).__name__}; give a function made by def, or a file")
    if name == "<lambda>":
        raise ScriptUnusable("a lambda has no name to call it by; give a function made by def")
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
        raise ScriptUnusable(f"{name} is a coroutine or a generator; give a function that trains when it is called")
    if hasattr(func, "__wrapped__"):
        raise ScriptUnusable(f"{name} is decorated, and its decorator is not in its source; give the bare function")
    if func.__closure__:
        held = ", ".join(func.__code__.co_freevars)
        raise ScriptUnusable(f"{name} uses {held} of the function around it; pass them with args or kwargs")
    try:
        source = inspect.getsource(func)
        indented = source[:1].isspace()
        source = _INDENTED + source if indented else source
        [node] = ast.parse(source).body
        if indented and isinstance(node, ast.If):
            [node] = node.body
    except (OSError, TypeError, SyntaxError, ValueError) as exc:
        message = f"the source of {name} cannot be read ({exc}); define it in a file or in a notebook's cell"
        raise ScriptUnusable(message) from exc
    if not isinstance(node, ast.FunctionDef):
        raise ScriptUnusable(f"{name} does not stand in a def of its own; give a function made by def")
    if node.decorator_list:
        raise ScriptUnusable(f"{name} is decorated with {ast.unparse(node.decorator_list[0])}; give the bare function")
    if not _is_script_source_of(func.__code__, source):
        file = func.__code__.co_filename
        message = f"the source of {name} in {file} is not what was imported from there: it has changed since"
        raise ScriptUnusable(f"{message}; import it anew")
    return node, source


def _is_script_source_of(code: CodeType, source: str) -> bool:
    """Whether `source` defines what `code` does; a file may have been changed after it was imported."""
    flags = code.co_flags & __future__.annotations.compiler_flag
    whole = compile(source, code.co_filename, "exec", flags=flags, dont_inherit=True)
    inner = (one for one in whole.co_consts if isinstance(one, CodeType))
    found = next((one for one in inner if one.co_name == code.co_name), None)
    if found is None:
        return False
    if any(name.startswith("@py") for name in code.co_names + code.co_varnames):
        # pytest has rewritten its assertions: what is in the source is there still, and more.
        return set(found.co_names) <= set(code.co_names)
    return _same_script_code(found, code)


def _same_script_code(one: object, other: object) -> bool:
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return type(one) is type(other) and repr(one) == repr(other)
    if (one.co_names, one.co_varnames) != (other.co_names, other.co_varnames):
        return False
    if _code_operations(one) != _code_operations(other):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=False)
    return len(one.co_consts) == len(other.co_consts) and all(_same_script_code(a, b) for a, b in pairs)


def _code_operations(code: CodeType) -> list[tuple[str, str]]:
    """What is calculated. The rest of the bytecode depends on the module around, such as on what it imports."""
    kinds = ("BINARY", "COMPARE", "CONTAINS", "IS", "UNARY")
    found = [(step.opname, step.argrepr) for step in dis.get_instructions(code)]
    return [step for step in found if step[0].startswith(kinds)]


def _check_script_names(definition: ast.FunctionDef, source: str, around: Mapping[str, Any]) -> None:
    """Refuse a function that uses what only the module around it has: in a script of its own that is missing."""
    table = symtable.symtable("from __future__ import annotations\n" + source, definition.name, "exec")
    used = {name for inner in _script_tables(table) for name in _script_globals(inner)}
    own = {definition.name, "annotations", "__name__", "__file__"}
    # A module's own `print` is not the one that the script would find.
    known = {name for name in dir(builtins) if name.startswith("__") or name not in around}
    missing = sorted(used - own - known)
    if missing:
        names = ", ".join(missing)
        message = f"{definition.name} uses {names}, which it does not define; import or define within the function"
        raise ScriptUnusable(f"{message}, or pass values with args or kwargs")


def _script_tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    """A scope and all within it; annotations, which are never evaluated, have scopes of their own."""
    inner = [found for child in table.get_children() for found in _script_tables(child)]
    return inner if "annotation" in str(table.get_type()).lower() else [table, *inner]


def _script_globals(table: symtable.SymbolTable) -> set[str]:
    top = table.get_type() == "module"
    return {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}


def _script_json(what: str, value: Any) -> str:
    """`value` as JSON that reads back the same."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as exc:
        raise ScriptUnusable(f"{what}: {exc}; a function's arguments are JSON values") from exc
    if json.loads(text) != value:
        raise ScriptUnusable(f"{what} is {shown(value)}, which JSON reads back as {shown(json.loads(text))}")
    return text


def _checked_script(script: Script) -> Script:
    size = len(script.text.encode())
    if size > MAX_BYTES:
        message = f"{script.name} has {size} bytes, and a script may have {MAX_BYTES}"
        raise ScriptUnusable(f"{message}: put it into the image and name it with in_image=True")
    return script
