"""Tests with many long cases: a run with `--sample` takes some of them, by a seed that it prints.

    @pytest.mark.sampled(2, of="size")        # the cases of two sizes
    @pytest.mark.parametrize("size", [1, 2, 3, 4])

    @pytest.mark.sampled(1, of="size", each="check")        # each check with one of the sizes
    @pytest.mark.sampled(1, of="size", each="check", one_in=3)        # the same for a third of the checks
    @pytest.mark.sampled(one_in=3)        # in one run of three: a test that takes long, and has no cases
    @pytest.mark.sampled        # in every run but for --thin

Where a case is skipped because of what a machine lacks, `can_run=` says whether a value of `of` can run here, as a
sample of skipped tests would be none. A test that is not marked, and runs on several implementations of a seam
(`SEAMS`), runs on one of them. `make test` takes a sample, in which each marked test is a twelfth as often
(`--thin`); without the option, in `make test-changed` and in `make test-thorough`, all cases run.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from support.cluster import can_open

T = TypeVar("T")
MARK = (
    "sampled(count=None, of=None, each=None, one_in=1, can_run=None): `--sample` runs so many cases, or those of "
    "so many values of `of`; with `each` so many for each value of that, or for one in so many values"
)
# Parameters whose values are implementations that the same cases hold for, and whether one can run here.
SEAMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(["open_cluster", "server"], can_open),
    "transport": lambda value: True,
}
# In the place of a parameter's name in `each`: all others of the test.
_OTHERS = "others"


@dataclass(frozen=True)
class Case:
    """As `callspec` of pytest's functions: what the id of a test says, and the values that it stands for."""

    id: str
    params: Mapping[str, Any]


class Sample:
    """What a run takes; `seed` "" is everything. `thin`: of so many runs a marked test is in one, beside what its
    mark says."""

    def __init__(self, seed: str, thin: int = 1) -> None:
        self.seed = seed
        self._thin = thin

    def of(self, values: Iterable[T], count: int, name: str) -> list[T]:
        """`count` of `values`, in their order; the same ones for the same seed and `name` in every process."""
        every = list(values)
        if not self.seed or len(every) <= count:
            return every
        chosen = random.Random(f"{self.seed} {name}").sample(range(len(every)), count)
        return [every[index] for index in sorted(chosen)]

    def left_out(self, items: Sequence[pytest.Item]) -> set[pytest.Item]:
        """The cases of `items` that are not taken."""
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            mark = item.get_closest_marker("sampled")
            if self.seed and mark:
                cases.setdefault(_group(item, mark.kwargs.get("each")), []).append(item)
        taken = set(self._groups(cases))
        return {
            item
            for name, functions in cases.items()
            for item in (self._left_out(name, functions) if name in taken else functions)
        }

    def _groups(self, cases: dict[str, list[pytest.Item]]) -> list[str]:
        """Names of the groups of which anything is taken: of each test's one in `one_in`, on average."""
        tests: dict[str, list[str]] = {}
        for name in cases:
            tests.setdefault(name.partition(" ")[0], []).append(name)
        taken = []
        for test, names in tests.items():
            mark = cases[names[0]][0].get_closest_marker("sampled")
            is_seam = mark.kwargs.get("each") == _OTHERS and "one_in" not in mark.kwargs
            one_in = mark.kwargs.get("one_in", 1) * (1 if is_seam else self._thin)
            count, rest = divmod(len(names), one_in)
            up = rest and random.Random(f"{self.seed} {test} one more").random() < rest / one_in
            taken += self.of(names, count + bool(up), f"{test} one in")
        return taken

    def _left_out(self, name: str, functions: list[pytest.Item]) -> list[pytest.Function]:
        mark = functions[0].get_closest_marker("sampled")
        if not mark.args:
            return []
        of, can_run = mark.kwargs.get("of"), mark.kwargs.get("can_run")
        values = [_case(item).params[of] if of else _case(item).id for item in functions]
        every = list(dict.fromkeys(values))
        taken = self.of([value for value in every if can_run is None or can_run(value)] or every, mark.args[0], name)
        return [item for item, value in zip(functions, values, strict=True) if value not in taken]


def mark_seams(items: Iterable[pytest.Item]) -> None:
    """Mark what has a parameter that is a seam as sampled: of each case one of its values. A mark that says more
    than `one_in` stays as it is.
    """
    for item in items:
        mark = item.get_closest_marker("sampled")
        if isinstance(item, pytest.Function) and not (mark and mark.args):
            for seam in SEAMS.keys() & _case(item).params.keys():
                more = {**(mark.kwargs if mark else {}), "can_run": SEAMS[seam]}
                item.add_marker(pytest.mark.sampled(1, of=seam, each=_OTHERS, **more), append=False)


def _case(item: pytest.Item) -> Any:
    """Of a test in a world its `case`, of a function what its parameters are."""
    return getattr(item, "case", None) or getattr(item, "callspec", Case("", {}))


def _group(item: pytest.Item, each: str | None) -> str:
    test = item.nodeid.partition("[")[0]
    if each == _OTHERS:  # by their names in the case's: values may have none that is alike in every process
        seams = {str(value) for key, value in _case(item).params.items() if key in SEAMS}
        return f"{test} {[part for part in _case(item).id.split('-') if part not in seams]}"
    return f"{test} {_case(item).params[each]}" if each else test
