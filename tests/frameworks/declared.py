"""The worlds in which the tests of a file run, and the names of its tests, read without importing the file.

    RUN_IN = {"framework": "torch", "ranks": [1, 2, 3]}

Each test of the file runs on every rank of a world of one, two and three ranks, which are forked from a process that
has imported torch. A file with several kinds of worlds has a list of such dictionaries. Their keys:

    framework   the module that is imported before ranks are forked
    ranks       numbers of ranks. Without it a test runs in one process, and starts its own ranks
    env         variables of the ranks
    each        variables with several values: one world for each value, which stands in the id of the test
    pairs       True: not a world for each combination of ranks and values, but for each pair of them
    name        a word for the id of the test
    needs       modules without which the tests are skipped
    judge       `module.function`: is called with a test and its name, in place of the test
    tests       the tests that run in these worlds, if not all

A test is a function `test_…`, or a name `test_… = …` at the left of a call.
"""

import ast
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworks.harness import TORCH_DEVICES, Variables, device_env

DEVICE = "RINGTRAIN_TEST_DEVICE"


@dataclass(frozen=True)
class World:
    """One world: `ranks` 0 is a process whose tests start ranks. `label`: its part of an id."""

    framework: str
    ranks: int
    env: Variables
    label: str
    judge: str


@dataclass(frozen=True)
class _Kind:
    framework: str
    ranks: Sequence[int] = (0,)
    env: Mapping[str, str] = field(default_factory=dict)
    each: Mapping[str, Sequence[str]] = field(default_factory=dict)
    name: str = ""
    needs: Sequence[str] = ()
    judge: str = ""
    tests: Sequence[str] = ()
    pairs: bool = False

    def worlds(self) -> Iterator[World]:
        choices = [[value for value in values if _can_run(name, value)] for name, values in self.each.items()]
        combinations = list(itertools.product(self.ranks, *choices))
        for ranks, *values in pairwise(combinations) if self.pairs else combinations:
            env = {**self.env, **dict(zip(self.each, values, strict=True))}
            env |= device_env(env.get(DEVICE, "cpu"))
            label = "-".join(filter(None, [self.name, *values, f"ranks-{ranks}" if ranks else ""]))
            yield World(self.framework, ranks, tuple(env.items()), label, self.judge)


def pairwise(combinations: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return some of the combinations: each two values that are in one of all are together in one of these."""

    def pairs(one: tuple[Any, ...]) -> set[tuple[Any, Any]]:
        return set(itertools.combinations(enumerate(one), 2))

    missing, taken = set().union(*map(pairs, combinations)), []
    while missing:
        taken.append(max(combinations, key=lambda one: len(missing & pairs(one))))
        missing -= pairs(taken[-1])
    return sorted(taken, key=combinations.index)


def _can_run(variable: str, value: str) -> bool:
    return variable != DEVICE or value in TORCH_DEVICES


@dataclass(frozen=True)
class Declared:
    """Declarations of a file: the line of each test, and its kinds of worlds."""

    lines: Mapping[str, int]
    kinds: Sequence[_Kind]

    def cases(self) -> Iterator[tuple[str, World, Sequence[str]]]:
        """Each test with each of its worlds, and the modules that it needs; the tests of a world in their order."""
        for kind in self.kinds:
            tests = kind.tests or self.lines
            for world in kind.worlds():
                yield from ((test, world, kind.needs) for test in tests)


@functools.cache
def declared(path: Path) -> Declared | None:
    """Return what the file declares, or None if it has no `RUN_IN`."""
    source = path.read_text()
    if "\nRUN_IN = " not in source:
        return None
    made = _statements(source)
    if "RUN_IN" not in made:
        return None
    literal = ast.literal_eval(made.pop("RUN_IN").value)  # type: ignore[attr-defined]
    kinds = [_kind(path, one) for one in (literal if isinstance(literal, list) else [literal])]
    lines = {name: node.lineno for name, node in made.items() if name.startswith("test_")}
    run = {test for kind in kinds for test in kind.tests or lines}
    if unknown := run - lines.keys():
        raise ValueError(f"{path.name}: RUN_IN names {sorted(unknown)}, expected tests of the file: {sorted(lines)}")
    if missing := lines.keys() - run:
        raise ValueError(f"{path.name}: no world of RUN_IN has {sorted(missing)}; expected one for each test")
    return Declared(lines, kinds)


def _kind(path: Path, values: dict[str, Any]) -> _Kind:
    try:
        return _Kind(**values)
    except TypeError as error:
        known = ", ".join(_Kind.__dataclass_fields__)
        raise ValueError(f"{path.name}: RUN_IN has the keys {sorted(values)}; expected some of {known}") from error


def _statements(source: str) -> dict[str, ast.stmt]:
    made: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            made[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            made[node.targets[0].id] = node
    return made
