"""A process that has imported a framework once and forks worlds of ranks, which then cost no import.

    python -m frameworks.worlds torch torch_training torch_collectives

imports `torch`, reads sizes of worlds from its input, one a line, and answers each with one line of JSON: what
failed in that world. Behind a size stand the checks that the world shall run, if not all. Nothing of the framework
runs before the fork, so that there are no threads to lose.
"""

import json
import multiprocessing
import os
import sys
import threading
import traceback

from frameworks.harness import run_checks
from frameworks.warm import import_once
from support.deadlines import patient
from support.ranks import run_ranks

# Of all checks of a world together: TensorFlow's take two minutes of two idle cores.
DEADLINE_S = patient(900.0)


def failures(modules: list[str], size: int, among: tuple[str, ...]) -> dict[str, str]:
    """What failed in a world of `size` ranks: name of the check to the tracebacks of all ranks that it failed on.

    Under "*": why the world as a whole did not end, if it did not.
    """
    assert threading.active_count() == 1, f"threads do not survive a fork: {threading.enumerate()}"
    fork = multiprocessing.get_context("fork")
    try:
        own = {name: value for name, value in os.environ.items() if name.startswith("RINGTRAIN_")}
        by_rank = run_ranks(run_checks, size, tuple(modules), among, env=own, deadline_s=DEADLINE_S, context=fork)
    except AssertionError:
        return {"*": traceback.format_exc()}
    names = {name for failed in by_rank for name in failed}
    return {
        name: "\n".join(f"rank {rank}:\n{failed[name]}" for rank, failed in enumerate(by_rank) if name in failed)
        for name in names
    }


def main(framework: str, modules: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print is not an answer
    import_once(framework)
    for line in sys.stdin:
        size, *among = line.split()
        print(json.dumps(failures(modules, int(size), tuple(among))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
