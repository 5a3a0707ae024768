"""A script that runs tests of one file, whose ranks are forked from it. A warm Python runs it, which has imported their
framework.

    python -m frameworks.scenarios plugins/torch/tests/test_elastic.py

reads names of functions of that file from its input, one a line, and answers each with one line of JSON: name to
traceback of what failed, which is empty if nothing did.
"""

import json
import multiprocessing
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frameworks.worlds import answers, import_tests
from support.elastic_agent import Slots, started_slots


@contextmanager
def forked_slots(
    function: Any, count: int, *args: Any, env: Mapping[str, str] | None = None, sites: Sequence[str] = ()
) -> Iterator[Slots]:
    """As `started_slots`, forked from this process."""
    context = multiprocessing.get_context("fork")
    with started_slots(function, count, *args, env=env, context=context, sites=sites) as slots:
        yield slots


@contextmanager
def newcomer_that_calls(calls_first: Any, collective: str) -> Iterator[Slots]:
    """One rank trains when another one comes, whose script begins with the collective."""
    with forked_slots(calls_first, 1, collective) as slots:
        assert slots.formed() == [2]
        slots.start(1)
        slots.tell_change()
        slots.form(0)
        yield slots


def main(path: Path) -> None:
    output = answers()
    scenarios = import_tests(path)
    for line in sys.stdin:
        failed = {}
        try:
            getattr(scenarios, line.strip())()
        except BaseException:
            failed[line.strip()] = traceback.format_exc()
        print(json.dumps(failed), file=output, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
