"""Threads, sockets and memory of a rank after the rendezvous, and its duration: all ranks on this machine.

    python -m bench.scale.startup 2 8 32 64

Ranks are forked from one process that has imported everything. They connect over gRPC, each as a separate host.
After the rendezvous they rest, make one allreduce of 4 KiB, and rest again. Threads, sockets and memory are read
after each rest.
"""

import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import ringtrain as rt
import ringtrain._core.transport.rpc
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.rpc import RpcTransport
from ringtrain._core.world.config import WorkerConfig
from ringtrain.shared.address import host_port
from ringtrain.shared.place import RankPlace
from ringtrain.shared.rank_settings import WorldWaits, WorldWays

_REST_S = 8.0  # longer than threads rest before they end


def _look() -> dict[str, float]:
    """Threads, connections and private memory of this process. A connection is counted at both of its ends."""
    sockets = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            sockets += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            continue
    with open("/proc/self/smaps_rollup") as rollup:
        fields = dict(line.split(":", 1) for line in rollup if ":" in line)
    private = sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
        "sockets": sockets,
        "private MiB": private / 1024,
    }


def _rank(config: WorkerConfig, pipe: Connection) -> None:
    transport = RpcTransport(config.place.rank, config.addresses, config.waits.timeout_s)
    pipe.recv()
    began, cpu = time.monotonic(), time.process_time()
    context = ProcessGroupContext(config, transport)
    told: dict[str, Any] = {"init s": time.monotonic() - began, "init cpu s": time.process_time() - cpu}
    pipe.send(None)
    pipe.recv()
    told["met"] = _look()
    pipe.send(None)
    pipe.recv()
    with context.entered():
        began = time.monotonic()
        rt.allreduce(np.ones(1024, np.float32), rt.Sum)
        told["first allreduce s"] = time.monotonic() - began
    pipe.send(None)
    pipe.recv()
    told["after"] = _look()
    pipe.send(told)
    pipe.recv()
    context.close()
    pipe.send(None)


def measured(size: int, first_port: int) -> dict[str, Any]:
    """One world of `size` ranks."""
    fork = multiprocessing.get_context("fork")
    addresses = tuple(host_port("127.0.0.1", first_port + rank) for rank in range(size))
    pipes, processes = [], []
    for rank in range(size):
        config = WorkerConfig(
            place=RankPlace(rank, size), addresses=addresses, waits=WorldWaits(timeout_s=120.0),
            ways=WorldWays(transport="grpc"),
        )  # fmt: skip
        here, there = fork.Pipe()
        process = fork.Process(target=_rank, args=(config, there), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)

    def step(rest_s: float) -> list[Any]:
        for pipe in pipes:
            pipe.send(None)
        answers = [pipe.recv() for pipe in pipes]
        time.sleep(rest_s)
        return answers

    step(_REST_S)  # meet
    step(0)  # look
    step(_REST_S)  # allreduce
    told = step(0)
    step(0)
    for process in processes:
        process.join(60)
    found: dict[str, Any] = {"ranks": size}
    for name in ("init s", "init cpu s", "first allreduce s"):
        found[name] = max(one[name] for one in told)
    for moment in ("met", "after"):
        found[moment] = {key: statistics.median(one[moment][key] for one in told) for key in told[0][moment]}
    return found


def main() -> None:
    assert ringtrain._core.transport.rpc
    for number, size in enumerate(map(int, sys.argv[1:] or ["2", "8", "32", "64"])):
        print(json.dumps(measured(size, 21_000 + 500 * number)), flush=True)


if __name__ == "__main__":
    main()
