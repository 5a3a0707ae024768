"""Functions that ranks of `ringtrain.run` and `run_ranks` import by name, each rank in a separate process."""

import os
import signal
import sys
import threading
from typing import Any

import numpy as np

import ringtrain as rt


def summed(factor: float, offset: float = 0.0) -> dict[str, Any]:
    rt.init()
    total = rt.allreduce(np.full(3, rt.rank() + 1.0), rt.Sum)
    return {"rank": rt.rank(), "size": rt.size(), "local": rt.local_rank(), "total": factor * total + offset}


def fails_on(rank: int) -> None:
    rt.init()
    if rt.rank() == rank:
        raise KeyError("no such layer")
    rt.allreduce(np.ones(3))


def killed_on(rank: int) -> None:
    rt.init()
    if rt.rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    rt.allreduce(np.ones(3))


def hangs(pid_file: str) -> None:
    with open(pid_file, "a") as file:
        file.write(f"{os.getpid()}\n")
    threading.Event().wait(600)


def gives_what_cannot_be_pickled() -> Any:
    return threading.Lock()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def prints_and_tells() -> tuple[str, str, str]:
    print("rank", os.environ["HOROVOD_RANK"], flush=True)
    return sys.executable, os.environ["RINGTRAIN_LOG_LEVEL"], os.environ["RINGTRAIN_TIMEOUT"]


def worlds_in_turn(rounds: int) -> list[float]:
    """A rank's sums in every second world; the others it leaves once it has met its peers, who may still meet."""
    sums = []
    for round_ in range(rounds):
        rt.init()
        if round_ % 2:
            sums.append(float(rt.allreduce(float(round_), rt.Sum)))
        rt.shutdown()
    return sums
