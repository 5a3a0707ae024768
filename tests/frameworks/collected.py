"""Collects files whose tests run in worlds of ranks: those with `RUN_IN` (`frameworks.declared`).

The process of pytest imports neither the file nor its framework. Each test in each world is an item of its own,
`test_host.py::test_groups[ranks-2]`; the items of one file and world share the world, which runs all of them when it
comes to the first.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from frameworks.declared import DEVICE, World, declared
from frameworks.harness import end_scenarios, failure_of_scenario, failures_in_world
from frameworks.warm_python import end_leases
from support.needs import need


class RanksFailed(Exception):
    """With the tracebacks of all ranks."""


class WorldTest(pytest.Item):
    """One test in one world."""

    def __init__(self, *, test: str, line: int, world: World, needs: Sequence[str], **more: Any) -> None:
        super().__init__(**more)
        self.test, self.line, self.world, self.needs = test, line, world, needs

    def setup(self) -> None:
        need(*self.needs)
        env, gpus = dict(self.world.env), len(list(Path("/dev").glob("nvidia[0-9]*")))
        if env.get(DEVICE) == "cuda" and env.get("RINGTRAIN_TRANSPORT") == "torch" and gpus < self.world.ranks:
            pytest.skip(f"NCCL needs {self.world.ranks} GPUs for {self.world.ranks} ranks, here are {gpus}")

    def runtest(self) -> None:
        if failed := self._failed_in_world() if self.world.ranks else self._failed_alone():
            raise RanksFailed(failed)

    def _failed_in_world(self) -> str:
        world, file = self.world, self.getparent(WorldFile)
        assert file is not None
        files = ((self.path, file.tests_in(world)),)
        failed = failures_in_world(world.framework, world.env, world.ranks, files, world.judge)
        return failed.get("*", "") or failed.get(f"{self.path.stem}.{self.test}", "")

    def _failed_alone(self) -> str:
        return failure_of_scenario(self.world.framework, self.world.env, self.path, self.test)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, RanksFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line - 1, self.name


class WorldFile(pytest.File):
    """A file with `RUN_IN`."""

    def collect(self) -> Iterator[WorldTest]:
        found = declared(self.path)
        assert found is not None
        for test, world, needs in found.cases():
            name = f"{test}[{world.label}]" if world.label else test
            more = {"name": name, "test": test, "line": found.lines[test], "world": world, "needs": needs}
            yield WorldTest.from_parent(self, **more)

    def tests_in(self, world: World) -> tuple[str, ...]:
        """The tests that this run takes of a world."""
        return self._tests_by_world[world]

    @functools.cached_property
    def _tests_by_world(self) -> dict[World, tuple[str, ...]]:
        here = [item for item in self.session.items if isinstance(item, WorldTest) and item.path == self.path]
        return {
            world: tuple(item.test for item in here if item.world == world) for world in {one.world for one in here}
        }


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file of tests in worlds, in place of pytest's module."""
    return WorldFile.from_parent(parent, path=module_path) if declared(module_path) else None


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the processes that run a file's tests after it, and those that have imported frameworks after its folder."""
    if nextitem is None or nextitem.path != item.path:
        end_scenarios()
        if nextitem is None or nextitem.path.parent != item.path.parent:
            end_leases()
