"""Training code that is sent to a job as text: a file, or the source of a function. Nothing is pickled."""

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

# Limit of the API server for one ConfigMap.
MAX_BYTES = 1 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
# A nested function is indented. Dedenting it would also change its multi-line strings.
_INDENTED = "if True:\n"


@dataclass(frozen=True)
class Script:
    """A Python file to run: name, text, and path on this machine if the text was read from a file."""

    name: str
    text: str
    path: Path | None = None


def read_script(path: str | Path) -> Script:
    """Return the script in a file of this machine. Raises ScriptUnusable if the file cannot be read, is too large or
    has an unsuitable name."""
    file = Path(path)
    if not _KEY.fullmatch(file.name):
        raise ScriptUnusable(f"{file}: the file's name may have letters, digits, '-', '_' and '.' only")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        hint = "if the script is in the image, pass its path with in_image=True"
        raise ScriptUnusable(f"{file}: {reason}; {hint}") from exc
    return _checked(Script(file.name, text, file.resolve()))


def function_script(func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Script:
    """Return a script that defines `func` from its source and calls it. Raises ScriptUnusable if that is impossible.

    The function must not depend on its module: it imports what it uses in its body. Arguments are JSON values.
    """
    definition, source = _definition(func)
    _check_names(definition, source, func.__globals__)
    arguments = (
        f"*__import__('json').loads({_as_json('args', list(args))!r}), "
        f"**__import__('json').loads({_as_json('kwargs', dict(kwargs))!r})"
    )
    text = (
        f'from __future__ import annotations\n\n{source}\n\nif __name__ == "__main__":\n'
        f"    {definition.name}({arguments})\n"
    )
    # Not the function's own name: if the script were random.py, `import random` would import it.
    return _checked(Script(re.sub(r"[^a-zA-Z0-9_]", "_", definition.name) + "_.py", text))


def _definition(func: Callable[..., object]) -> tuple[ast.FunctionDef, str]:
    """Return a function's `def` as syntax tree, and its source text. Raises ScriptUnusable if `func` cannot be sent as
    source."""
    name = getattr(func, "__name__", type(func).__name__)
    if not inspect.isfunction(func):
        raise ScriptUnusable(f"{name} is a {type(func).__name__}; pass a function defined with def, or a file")
    if name == "<lambda>":
        raise ScriptUnusable("a lambda cannot be sent, because it has no name; pass a function defined with def")
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
        raise ScriptUnusable(f"{name} is a coroutine or a generator; pass a plain function")
    if hasattr(func, "__wrapped__"):
        raise ScriptUnusable(
            f"{name} is decorated, but only the function's own source can be sent; pass the undecorated function"
        )
    if func.__closure__:
        variables = ", ".join(func.__code__.co_freevars)
        raise ScriptUnusable(
            f"{name} uses {variables} of the enclosing function; pass their values with args or kwargs"
        )
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
        raise ScriptUnusable(f"{name} is not defined by a def statement; pass a function defined with def")
    if node.decorator_list:
        raise ScriptUnusable(
            f"{name} is decorated with {ast.unparse(node.decorator_list[0])}; pass the undecorated function"
        )
    if not _is_source_of(func.__code__, source):
        file = func.__code__.co_filename
        message = f"the source of {name} in {file} has changed since it was imported"
        raise ScriptUnusable(f"{message}; import the module again")
    return node, source


def _is_source_of(code: CodeType, source: str) -> bool:
    """Return whether `source` defines the function of `code`; the file may have changed after its import."""
    flags = code.co_flags & __future__.annotations.compiler_flag
    whole = compile(source, code.co_filename, "exec", flags=flags, dont_inherit=True)
    inner = (one for one in whole.co_consts if isinstance(one, CodeType))
    found = next((one for one in inner if one.co_name == code.co_name), None)
    if found is None:
        return False
    if any(name.startswith("@py") for name in code.co_names + code.co_varnames):
        # pytest has rewritten the assertions: the code uses the names of the source and others.
        return set(found.co_names) <= set(code.co_names)
    return _is_same_code(found, code)


def _is_same_code(one: object, other: object) -> bool:
    """Return whether two code objects (or two constants) have the same names, constants and operations."""
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return type(one) is type(other) and repr(one) == repr(other)
    if (one.co_names, one.co_varnames) != (other.co_names, other.co_varnames):
        return False
    if _code_operations(one) != _code_operations(other):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=False)
    return len(one.co_consts) == len(other.co_consts) and all(_is_same_code(a, b) for a, b in pairs)


def _code_operations(code: CodeType) -> list[tuple[str, str]]:
    """Return the arithmetic and comparison instructions of `code` as pairs of name and argument.

    Other instructions are omitted because they also depend on the code's module.
    """
    kinds = ("BINARY", "COMPARE", "CONTAINS", "IS", "UNARY")
    found = [(step.opname, step.argrepr) for step in dis.get_instructions(code)]
    return [step for step in found if step[0].startswith(kinds)]


def _check_names(definition: ast.FunctionDef, source: str, around: Mapping[str, Any]) -> None:
    """Raise ScriptUnusable if the function uses names of its module, which the sent script does not contain.

    `around`: values of the module by name.
    """
    table = symtable.symtable("from __future__ import annotations\n" + source, definition.name, "exec")
    used = {name for inner in _scopes(table) for name in _global_names(inner)}
    own = {definition.name, "annotations", "__name__", "__file__"}
    # If the module defines its own `print`, the script would use the built-in one instead.
    known = {name for name in dir(builtins) if name.startswith("__") or name not in around}
    missing = sorted(used - own - known)
    if missing:
        names = ", ".join(missing)
        message = f"{definition.name} uses {names}, which it does not define; import or define within the function"
        raise ScriptUnusable(f"{message}, or pass values with args or kwargs")


def _scopes(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    """Return a scope and its inner scopes, without those of annotations, which are never evaluated."""
    inner = [found for child in table.get_children() for found in _scopes(child)]
    return inner if "annotation" in str(table.get_type()).lower() else [table, *inner]


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that the code of a scope uses."""
    top = table.get_type() == "module"
    return {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}


def _as_json(what: str, value: Any) -> str:
    """Return `value` as JSON. Raises ScriptUnusable, with `what` as name of the value, unless JSON reads back an equal
    value."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as exc:
        raise ScriptUnusable(f"{what} cannot be written as JSON: {exc}; pass only JSON values") from exc
    if json.loads(text) != value:
        raise ScriptUnusable(
            f"{what} is {shown(value)}, but JSON changes it to {shown(json.loads(text))}; pass only JSON values"
        )
    return text


def _checked(script: Script) -> Script:
    """Return `script` if it fits into a ConfigMap. Otherwise raise ScriptUnusable."""
    size = len(script.text.encode())
    if size > MAX_BYTES:
        message = f"{script.name} has {size} bytes; expected at most {MAX_BYTES}"
        raise ScriptUnusable(f"{message}: put the script into the image, and pass its path with in_image=True")
    return script
