"""Functions as scripts: their source runs without the module, or the error has the reason before anything is sent."""

import functools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import completed

from ringtrain_client.jobs.errors import ScriptUnusable
from ringtrain_client.jobs.script import MAX_BYTES, function_script, read_script

LIMIT = 3


def run(text: str, tmp_path: Path) -> str:
    """Return the output of the script, run as by a rank."""
    file = tmp_path / "script.py"
    file.write_text(text)
    return completed([sys.executable, str(file)], check=True).stdout


def prints(rows: list[int], scale: float = 1.0, *, label: "json.JSONDecoder | str" = "sum") -> None:
    import json  # imported in the function

    def total(values: list[int]) -> float:
        return sum(value * scale for value in values)

    print(json.dumps({label: total(rows)}), __name__)


def uses_a_module() -> float:
    return math.sqrt(LIMIT)


def generates() -> Iterator[int]:
    yield 1


async def waits() -> None: ...


@functools.cache
def cached() -> None: ...


def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
    return func


@decorate
def decorated() -> None: ...


class Trainer:
    def train(self) -> None: ...


def around(held: int) -> Callable[[], int]:
    def inner() -> int:
        return held

    return inner


def test_a_function_runs_by_its_source(tmp_path: Path) -> None:
    """A function with local imports, definitions and arguments runs; annotations are never evaluated."""
    script = function_script(prints, [[1, 2, 3]], {"scale": 0.5, "label": "it's"})
    assert script.name == "prints_.py"
    assert run(script.text, tmp_path) == """{"it's": 3.0} __main__\n"""


def test_a_function_within_a_function_is_dedented(tmp_path: Path) -> None:
    """A nested function runs if it uses nothing of the outer one."""

    def nested() -> None:
        print("here")

    assert run(function_script(nested, [], {}).text, tmp_path) == "here\n"


def test_texts_of_a_function_within_a_function_stay_as_they_are(tmp_path: Path) -> None:
    """Multi-line strings of an indented function do not change."""

    def nested() -> None:
        print("""one
        two
three""")

    assert run(function_script(nested, [], {}).text, tmp_path) == "one\n        two\nthree\n"


def json_() -> None:
    print("json itself")


def обучи(шаги: int) -> None:
    print("шаги", шаги)


def test_names_of_modules_and_of_other_alphabets(tmp_path: Path) -> None:
    """The script's name differs from all modules' names, and is a valid key of a ConfigMap."""
    assert function_script(json_, [], {}).name == "json__.py"
    script = function_script(обучи, [3], {})
    assert script.name == "______.py"
    file = tmp_path / script.name
    file.write_text(script.text, encoding="utf-8")
    done = subprocess.run([sys.executable, file], check=True, capture_output=True, env={"PYTHONUTF8": "1"})
    assert done.stdout.decode() == "шаги 3\n"


OF_A_FILE = """
def random(json):
    import random
    print(random.Random(json).random() {more} 1)
"""


def imported(file: Path, text: str) -> dict[str, Any]:
    """Return the names of a module that is imported from a file with this text."""
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names


def test_a_function_may_have_a_modules_name(tmp_path: Path) -> None:
    """An import in the function with the script's name imports the module."""
    func = imported(tmp_path / "own.py", OF_A_FILE.format(more="<"))["random"]
    script = function_script(func, [1], {})
    file = tmp_path / script.name
    file.write_text(script.text)
    assert subprocess.run([sys.executable, file], check=True, capture_output=True).stdout == b"True\n"


@pytest.mark.parametrize("text", [OF_A_FILE.format(more=">"), "\n\n" + OF_A_FILE.format(more="<"), "x = 1\n"])
def test_a_file_that_has_changed_since_it_was_imported(tmp_path: Path, text: str) -> None:
    """A function whose file has changed since its import is refused."""
    file = tmp_path / "own.py"
    func = imported(file, OF_A_FILE.format(more="<"))["random"]
    file.write_text(text)
    with pytest.raises(ScriptUnusable, match=r"has changed since|cannot be read"):
        function_script(func, [1], {})


def test_a_modules_own_print_is_missing(tmp_path: Path) -> None:
    """A name that the module redefines is refused, because the script would use Python's own."""
    func = imported(tmp_path / "own.py", "print = exit\n\ndef train():\n    print(1)\n")["train"]
    with pytest.raises(ScriptUnusable, match="train uses print, which it does not define"):
        function_script(func, [], {})


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (lambda: None, "a lambda cannot be sent"),
        (around(1), "inner uses held of the enclosing function"),
        (uses_a_module, "uses_a_module uses LIMIT, math, which it does not define"),
        (generates, "a coroutine or a generator"),
        (waits, "a coroutine or a generator"),
        (cached, "cached is a _lru_cache_wrapper"),
        (decorated, "decorated is decorated with decorate"),
        (Trainer().train, "train is a method"),
        (functools.partial(prints, [1]), "partial is a partial"),
        (print, "print is a builtin_function_or_method"),
        (eval("lambda: 0"), "a lambda cannot be sent"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_what_cannot_be_sent(func: Callable[..., object], expected: str) -> None:
    """The error names the function and a solution."""
    with pytest.raises(ScriptUnusable, match=expected.replace("(", r"\(")):
        function_script(func, [], {})


def test_a_function_without_source() -> None:
    """A function typed into a shell, which has no source, is refused."""
    names: dict[str, Any] = {}
    exec("def typed(): pass", names)
    with pytest.raises(ScriptUnusable, match=r"source of typed cannot be read.*notebook"):
        function_script(names["typed"], [], {})


@pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, math.nan], ids=["object", "tuple", "number-key", "nan"])
def test_arguments_are_json(value: object) -> None:
    """An argument that JSON would change is refused."""
    with pytest.raises(ScriptUnusable, match="args"):
        function_script(prints, [value], {})


def test_a_file_of_the_largest_size(tmp_path: Path) -> None:
    """A file that exceeds a ConfigMap by one byte is refused before anything is sent."""
    file = tmp_path / "train.py"
    file.write_text("#" * MAX_BYTES)
    assert read_script(file).name == "train.py"
    file.write_text("#" * (MAX_BYTES - 1) + "é")
    with pytest.raises(ScriptUnusable, match=r"1048577 bytes; expected at most 1048576: .*in_image"):
        read_script(file)


@pytest.mark.parametrize(("name", "expected"), [("no.py", "No such file.*in_image"), ("a b.py", "name may have")])
def test_a_file_that_cannot_be_sent(name: str, expected: str, tmp_path: Path) -> None:
    """The error has the problem of the file."""
    with pytest.raises(ScriptUnusable, match=expected):
        read_script(tmp_path / name)
