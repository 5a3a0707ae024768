"""A script that forks a world of ranks from itself. A warm Python runs it, which has imported their framework.

    python -m frameworks.worlds

reads the world from its input: a JSON object with the tests of each file, the number of ranks and variables for them.
It answers with one line of JSON: what failed in that world. Nothing of the framework runs before the fork, so that
there are no threads to lose.
"""

import functools
import importlib
import json
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from frameworks.declared import declared
from support.deadlines import patient
from support.ranks import run_ranks

# Of all tests of a world together: TensorFlow's take two minutes of two idle cores.
DEADLINE_S = patient(900.0)
Files = Sequence[tuple[str, Sequence[str]]]


def import_tests(path: Path) -> ModuleType:
    """Import a file of tests by its name: another plugin may have a file of that name."""
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def run_tests(files: Files, judge: str) -> dict[str, str]:
    """In a rank: run the tests of each file, or `judge` on each; return the traceback of each that failed."""
    failed = {}
    for path, tests in files:
        module = import_tests(Path(path))
        if unseen := {name for name in vars(module) if name.startswith("test_")} - _names_in(Path(path)):
            raise AssertionError(f"{path}: {sorted(unseen)} are never run; expected `def test_…` or `test_… = …`")
        for name in tests:
            try:
                _runner(module, name, judge)()
            except BaseException:
                failed[f"{module.__name__}.{name}"] = traceback.format_exc()
    return failed


def _names_in(path: Path) -> set[str]:
    found = declared(path)
    return set(found.lines) if found else set()


def _runner(module: ModuleType, name: str, judge: str) -> Callable[[], Any]:
    test = getattr(module, name)
    if judge:
        owner, _, function = judge.rpartition(".")
        return functools.partial(getattr(importlib.import_module(owner), function), test, name)
    return test  # type: ignore[no-any-return]


def failures(files: Files, ranks: int, env: Mapping[str, str], judge: str) -> dict[str, str]:
    """Run one world and return what failed: name of the test to the tracebacks of all ranks that it failed on.

    Under "*": why the world as a whole did not end, if it did not.
    """
    assert threading.active_count() == 1, f"threads do not survive a fork: {threading.enumerate()}"
    own = {name: value for name, value in os.environ.items() if name.startswith("RINGTRAIN_")}
    options: dict[str, Any] = {"env": {**own, **env}, "deadline_s": DEADLINE_S}
    try:
        by_rank = run_ranks(run_tests, ranks, files, judge, context=multiprocessing.get_context("fork"), **options)
    except AssertionError:
        return {"*": traceback.format_exc()}
    names = {name for failed in by_rank for name in failed}
    return {
        name: "\n".join(f"rank {rank}:\n{failed[name]}" for rank, failed in enumerate(by_rank) if name in failed)
        for name in names
    }


def answers() -> TextIO:
    """Return the output of this process; what ranks print from now on is not an answer."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


if __name__ == "__main__":
    output = answers()
    print(json.dumps(failures(**json.load(sys.stdin))), file=output, flush=True)
