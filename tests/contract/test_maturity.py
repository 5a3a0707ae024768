"""The maturity page, the CRD, --help, docstrings, variables and the chart say the same of each feature."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from support.commands import module_at

import ringtrain_client.cli.main
import ringtrain_job.cli.main
from ringtrain_operator.command import operator
from ringtrain_operator.generate.crd import build_crd

ROOT = Path(__file__).parents[2]
in_plugin = module_at(ROOT / "docs/check.py").in_plugin
PAGE = (ROOT / "docs/maturity.md").read_text()
WORDS = {"Stable", "Beta", "Experimental"}
SAID = re.compile(r"Maturity: ([^.]+)\.")
GROUPS = {"dtj": ringtrain_client.cli.main.main, "ringtrain": ringtrain_job.cli.main.main}
PROGRAMS: dict[str, click.Command] = {**GROUPS, "ringtrain-operator": operator}
SPEC = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
CONTRACT = (ROOT / "docs/contract.md").read_text()
VALUES = yaml.safe_load((ROOT / "charts/ringtrain-operator/values.yaml").read_text())


def rows() -> list[tuple[str, str, list[str], str]]:
    """(feature, maturity, names, what was shown) of the page's table."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]
    return [(feature, word, re.findall(r"`([^`]+)`", names), shown) for feature, word, names, shown in cells]


NAMED = [(name, word) for _, word, names, _ in rows() for name in names]
PAGES_NAMES = {name.partition(":")[0] for name, _ in NAMED}


def test_every_feature_has_a_word_and_what_was_shown() -> None:
    """One of the three words in each row; no feature and no name stands there twice."""
    assert {word for _, word, _, _ in rows()} == WORDS
    assert [feature for feature, _, _, shown in rows() if not shown] == []
    names = [name for name, _ in NAMED]
    assert sorted(names) == sorted(set(names))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "word"), NAMED, ids=[name for name, _ in NAMED])
def test_what_a_row_names_says_its_word(name: str, word: str) -> None:
    """A field, command, option, module, variable or value has the page's word; Stable needs none.

    `name: value` is one of several values of a thing, which says a word of each.
    """
    thing, _, value = name.partition(": ")
    if re.match(r"(spec|dtj|ringtrain|ringtrain_sdk|RINGTRAIN_\w+)\b", thing) is None:
        held = chart_value(thing)
        assert word != "Experimental" or held is False or held != (value or held)
        return
    said = said_of(thing)
    if value:
        assert f"{value} {word}" in said.split(", ")
    elif said or word != "Stable":
        assert re.match(rf"{word}\b", said), said


def test_whatever_says_a_word_is_on_the_page() -> None:
    """No field of the CRD, option, command, docstring or variable has a word that the page does not know."""
    known = (*fields(SPEC, "spec"), *commands(), *docstrings(), *variables().items())
    unknown = {name for name, said in known if said} - PAGES_NAMES - {in_plugin(name) for name in PAGES_NAMES}
    assert unknown == set()


def said_of(thing: str) -> str:
    """Return the words after "Maturity:" in the description, help or docstring of `thing`; empty if absent."""
    if thing.startswith("spec"):
        return said_in(field(thing)["description"])
    if thing.startswith("RINGTRAIN_"):
        return variables()[thing]
    if " " in thing or thing in PROGRAMS:
        return said_in(help_of(thing))
    return said_in(docstring(thing))


def said_in(text: str) -> str:
    """The words behind "Maturity:", without the sentence's line breaks."""
    found = SAID.search(" ".join(text.split()))
    return found[1] if found else ""


def field(path: str) -> dict[str, Any]:
    """The schema of a field of the CRD, which has to be there."""
    found: dict[str, Any] = SPEC
    for part in path.split(".")[1:]:
        found = found["properties"][part]
    return found


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """(path, words) of every field that says a word."""
    if said := said_in(schema.get("description", "")):
        yield path, said
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")


def help_of(line: str) -> str:
    """The help of a program, of its command, or of an option behind that."""
    program, *words = line.split()
    command: click.Command | None = PROGRAMS[program]
    if isinstance(command, click.Group) and words:
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None, line
    if not words:
        return command.help or ""
    (option,) = [p for p in command.params if isinstance(p, click.Option) and words[0] in p.opts]
    return option.help or ""


def commands() -> Iterator[tuple[str, str]]:
    """(command line, words) of every command and option that says a word; an option by its name on the page."""
    found: dict[str, click.Command | None] = {"ringtrain-operator": operator}
    for program, group in GROUPS.items():
        assert isinstance(group, click.Group)
        context = click.Context(group)
        found |= {f"{program} {name}": group.get_command(context, name) for name in group.list_commands(context)}
    for line, command in found.items():
        assert command is not None
        texts = {line: command.help or ""}
        for option in command.params:
            if isinstance(option, click.Option):
                lines = {f"{line} {opt}" for opt in option.opts}
                texts[next(iter(sorted(lines & PAGES_NAMES)), min(lines))] = option.help or ""
        yield from ((named, said_in(text)) for named, text in texts.items() if said_in(text))


def docstring(name: str) -> str:
    """The docstring of a module, or of a class of one, which is read and not imported."""
    name = in_plugin(name)
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is not None and found.origin is not None:
        return ast.get_docstring(ast.parse(Path(found.origin).read_text())) or ""
    module, _, member = name.rpartition(".")
    package = importlib.util.find_spec(module)
    assert package is not None, name
    assert package.origin is not None
    for file in Path(package.origin).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == member:
                return ast.get_docstring(node) or ""
    return ""


def docstrings() -> Iterator[tuple[str, str]]:
    """(dotted name, words) of every module and class of the library and the client that says a word."""
    plugins = ((f"plugins/{plugin.name}", f"ringtrain_{plugin.name}") for plugin in (ROOT / "plugins").glob("*/"))
    for folder, package in (("worker_image", "ringtrain"), ("client", "ringtrain_sdk"), *plugins):
        for file in sorted((ROOT / folder / package).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(file.read_text())
            if "cli" in parts:  # their docstrings are help
                continue
            if said := said_in(ast.get_docstring(tree) or ""):
                yield name, said
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and (said := said_in(ast.get_docstring(node) or "")):
                    yield f"{'.'.join(parts[:-1])}.{node.name}", said


def variables() -> dict[str, str]:
    """Return the maturity in each row of the contract's tables of variables, by the row's first variable."""
    rows = re.findall(r"^\| `(RINGTRAIN_\w+)`.*$", CONTRACT, re.MULTILINE)
    lines = [line for line in CONTRACT.splitlines() if line.startswith("| `RINGTRAIN_")]
    return dict(zip(rows, map(said_in, lines), strict=True))


def chart_value(path: str) -> Any:
    """A default of the chart, which has to be there."""
    found: Any = VALUES
    for part in path.split("."):
        found = found[part]
    return found
