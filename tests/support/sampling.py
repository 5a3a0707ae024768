"""Tests with many long cases: a run with `--sample` takes some of them, by a seed that it prints.

    @pytest.mark.sampled(2, of="size")        # the cases of two sizes
    @pytest.mark.parametrize("size", [1, 2, 3, 4])

    @pytest.mark.sampled(1, of="size", each="check")        # each check with one of the sizes
    @pytest.mark.sampled(1, of="size", each="check", one_in=3)        # the same for a third of the checks

Where a case is skipped because of what a machine lacks, `can_run=` says whether a value of `of` can run here, as a
sample of skipped tests would be none. `make test` takes a sample; without the option, and in `make test-thorough`,
all cases run.
"""

import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
MARK = (
    "sampled(count, of=None, each=None, one_in=1, can_run=None): `--sample` runs so many cases, or those of "
    "so many values of `of`; with `each` so many for each value of that, or for one in so many values"
)


class Sample:
    """What a run takes; `seed` "" is everything."""

    def __init__(self, seed: str) -> None:
        self.seed = seed

    def of(self, values: Iterable[T], count: int, name: str) -> list[T]:
        """`count` of `values`, in their order; the same ones for the same seed and `name` in every process."""
        every = list(values)
        if not self.seed or len(every) <= count:
            return every
        chosen = random.Random(f"{self.seed} {name}").sample(range(len(every)), count)
        return [every[index] for index in sorted(chosen)]

    def left_out(self, items: Sequence[pytest.Item]) -> set[pytest.Item]:
        """The cases of `items` that are not taken."""
        cases: dict[str, list[pytest.Function]] = {}
        for item in items:
            mark = item.get_closest_marker("sampled")
            if self.seed and isinstance(item, pytest.Function) and mark and mark.args:
                each = mark.kwargs.get("each")
                group = item.nodeid.partition("[")[0] + (f" {item.callspec.params[each]}" if each else "")
                cases.setdefault(group, []).append(item)
        return {item for name, functions in cases.items() for item in self._left_out(name, functions)} | {
            item for name in cases.keys() - set(self._groups(cases)) for item in cases[name]
        }

    def _groups(self, cases: dict[str, list[pytest.Function]]) -> list[str]:
        """Names of the groups of which anything is taken: of each test's one in `one_in`."""
        tests: dict[str, list[str]] = {}
        for name in cases:
            tests.setdefault(name.partition(" ")[0], []).append(name)
        taken = []
        for test, names in tests.items():
            mark = cases[names[0]][0].get_closest_marker("sampled")
            assert mark is not None
            taken += self.of(names, -(-len(names) // mark.kwargs.get("one_in", 1)), f"{test} one in")
        return taken

    def _left_out(self, name: str, functions: list[pytest.Function]) -> list[pytest.Function]:
        mark = functions[0].get_closest_marker("sampled")
        assert mark is not None
        of, can_run = mark.kwargs.get("of"), mark.kwargs.get("can_run")
        values = [item.callspec.params[of] if of else item.callspec.id for item in functions]
        every = list(dict.fromkeys(values))
        taken = self.of(
            [value for value in every if can_run is None or can_run(value)] or every, mark.args[0], name
        )
        return [item for item, value in zip(functions, values, strict=True) if value not in taken]
