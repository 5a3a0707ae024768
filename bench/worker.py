"""One rank of one contender: connects to the contest, does what it is told, and says how long it took.

    python -m bench.worker CONTENDER SOCKET

Commands and answers are JSON lines. The world is in the environment: RINGTRAIN_* for ours, RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT for gloo, mpirun's own for MPI.
"""

import json
import os
import resource
import socket
import sys
import time
from typing import Any

from bench.backends import backend


def main() -> None:
    contender, path = sys.argv[1:]
    made = backend(contender)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw")
        _say(stream, {"contender": contender, "rank": made.rank})
        for line in stream:
            command = json.loads(line)
            if command["do"] == "stop":
                break
            if command["do"] == "ask":
                _say(stream, made.ask(**command["what"]))
            else:
                _say(stream, _measured(made, command))
    made.close()
    os._exit(0)  # peers' libraries take their time to tear down


def _measured(made: Any, command: dict[str, Any]) -> dict[str, Any]:
    work = made.prepare(**command["what"])
    for _ in range(command["warm_up"]):
        work()  # the first times pay for page faults and connections
    made.barrier()
    times, cpu_before = [], _cpu_seconds()
    for _ in range(command["repetitions"]):
        made.barrier()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {"times": times, "cpu_s": _cpu_seconds() - cpu_before}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _say(stream: Any, value: Any) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
