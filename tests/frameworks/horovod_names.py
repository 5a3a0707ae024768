"""Public names of Horovod and of tf.estimator, and how ours differ from them."""

import ast
import functools
import inspect
import operator
import re
from pathlib import Path
from typing import Any

# What ours lack, and the page says so.
NOT_HERE: set[str] = set()
# Where horovod.keras and horovod.tensorflow.keras differ from each other, ours is the latter, which has more.
OF_TENSORFLOW_KERAS = {
    ("keras", "allreduce"),
    ("keras.callbacks", "BestModelCheckpoint"),
}


@functools.cache
def horovod_names(file: str = "horovod_names.txt") -> dict[str, dict[str, str]]:
    """Name to arguments, by module; "" for what is no function."""
    found: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name(file).read_text().splitlines():
        if section := re.fullmatch(r"\[([\w.]+)\]", line):
            names = found[section[1]] = {}
        elif line and not line.startswith("#"):
            name, _, arguments = line.partition("(")
            names[name] = arguments.removesuffix(")") if arguments else ""
    return found


def differences(module: str, ours: Any, file: str = "horovod_names.txt") -> list[str]:
    """Say what of the original's `module` a script would miss in `ours`: names, arguments, places, defaults."""
    found = []
    for name, arguments in horovod_names(file)[module].items():
        if name in NOT_HERE or (module, name) in OF_TENSORFLOW_KERAS:
            continue
        try:
            own = operator.attrgetter(name)(ours)
        except AttributeError:
            found.append(f"{name} is missing")
            continue
        if arguments:
            found += _of_arguments(name, arguments, own)
    return found


def _of_arguments(name: str, arguments: str, function: Any) -> list[str]:
    parsed = ast.parse(f"def f({arguments}): ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    theirs = [argument.arg for argument in parsed.args.args]
    defaults = dict(zip(reversed(theirs), map(ast.unparse, reversed(parsed.args.defaults)), strict=False))
    own = {key: p for key, p in inspect.signature(function).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    own.pop("self", None)
    if list(own)[: len(theirs)] != theirs:
        return [f"{name} takes {list(own)} and the original {theirs}"]
    found = [
        f"{name}({key}={_shown(own[key].default)}) and the original's {default}"
        for key, default in defaults.items()
        if _shown(own[key].default) != default
    ]
    # What only ours has must not be asked for.
    found += [f"{name} needs {key}" for key in list(own)[len(theirs) :] if own[key].default is inspect.Parameter.empty]
    return found


def _shown(default: Any) -> str:
    """A default as it is written in Horovod's source."""
    if getattr(default, "__name__", "") == "NoneCompressor":
        return "Compression.none"
    if type(default).__name__ == "ProcessSet":
        return "global_process_set"
    if type(default).__name__ == "_Default":
        return "_USE_DEFAULT"
    return repr(default).removeprefix("ringtrain.")
