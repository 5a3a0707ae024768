"""Seconds from the kill of a rank to the next committed step, beside a torchrun restart of the same model.

    python -m bench.elastic --ranks 2 --repeats 3

25.6 million parameters (ResNet-50's), AdamW, float32, on this machine. Ringtrain: `ringtrain run --min-np 1`,
with the state in the survivors' memory. torchrun: DDP with fused AdamW, `--max-restarts`, and a checkpoint in
/dev/shm, which is the best place that it can have. The two take turns; both find the loss by themselves.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PARAMETERS, ARRAYS = 25_600_000, 160
BEFORE = 4  # steps before the kill
DEADLINE_S = 300.0
# torchrun otherwise keeps one store for all restarts, and in it the addresses of killed processes: a rank that
# reads one before its new owner has overwritten it connects to nobody, and restart follows restart.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def ringtrain_rank(directory: Path) -> None:
    """One rank: steps until the file `end` is there."""
    import numpy as np

    import ringtrain as rt
    from ringtrain import elastic

    slot = os.environ["RINGTRAIN_SLOT"]
    weights = {f"layer{i}": np.zeros(PARAMETERS // ARRAYS, np.float32) for i in range(ARRAYS)}
    gradient = np.full(PARAMETERS // ARRAYS, 0.1, np.float32)
    rt.init()
    optimizer = rt.optim.HostOptimizer(weights, rt.optim.AdamW(lr=1e-3), elastic=True)
    state = elastic.State(optimizer=optimizer, step=0, is_over=False)

    @elastic.run
    def train(state: elastic.State) -> None:
        while not state.is_over:
            for name in reversed(list(weights)):
                state.optimizer.submit(name, gradient)
            state.optimizer.step()
            state.step += 1
            state.is_over = bool(rt.broadcast_object((directory / "end").exists()))
            try:
                state.commit()
            finally:  # a commit that ends the world because others join counts as well
                note(directory, slot, os.environ["RINGTRAIN_FORMATION"])

    train(state)


def torch_rank(directory: Path) -> None:
    """The same with DDP; the rank that begins again reads the checkpoint."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, life = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    torch.set_num_threads(1)
    model = torch.nn.Module()
    for i in range(ARRAYS):
        model.register_parameter(f"layer{i}", torch.nn.Parameter(torch.zeros(PARAMETERS // ARRAYS)))
    model.forward = lambda: sum(param.sum() for param in model.parameters())
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    saved = directory / "checkpoint"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    step = 0
    over = torch.zeros(1)
    while not over.item():
        optimizer.zero_grad()
        parallel().backward()
        optimizer.step()
        step += 1
        if step == BEFORE // 2 and rank == 0 and not saved.exists():
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, directory / "new")
            (directory / "new").rename(saved)
        over.fill_(float((directory / "end").exists()))
        dist.broadcast(over, 0)
        note(directory, str(rank), life)


def note(directory: Path, place: str, world: str) -> None:
    """A step is done: when, by which process, in which world."""
    with (directory / f"steps-{place}").open("a") as file:
        print(json.dumps([time.time(), os.getpid(), int(world)]), file=file)


def steps(directory: Path, place: int) -> list[tuple[float, int, int]]:
    path = directory / f"steps-{place}"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f"{process.args} did not come so far (exit status {process.poll()})")
        time.sleep(0.01)


def measured(command: list[str], kind: str, ranks: int) -> float:
    """Start it, kill rank 1 after some steps; seconds until rank 0 has done a step in the next world."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their byte code
        process = subprocess.Popen(
            [*command, __file__, kind, name],
            cwd=name,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until(lambda: all(len(steps(directory, rank)) >= BEFORE for rank in range(ranks)), process)
            _, victim, world = steps(directory, 1)[-1]
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            until(lambda: steps(directory, 0)[-1][2] > world, process)
            again = next(at for at, _, later in steps(directory, 0) if later > world)
            (directory / "end").touch()
            process.wait(DEADLINE_S)
            return again - killed
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun ends its ranks, which have sessions of their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    run = [sys.executable, "-m", "ringtrain", "run", "-np", str(given.ranks), "--min-np", "1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "9"]
    commands = {
        "ringtrain, Replace": ([*run, "--on-loss", "Replace", sys.executable], "ringtrain"),
        "ringtrain, Shrink": ([*run, "--on-loss", "Shrink", sys.executable], "ringtrain"),
        "torchrun restart": ([*torchrun, "--nproc-per-node", str(given.ranks)], "torch"),
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(given.repeats):
        for name, (command, kind) in commands.items():
            found[name].append(measured(command, kind, given.ranks))
            print(f"{name}: {found[name][-1]:.2f} s", flush=True)
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} to {max(times):.2f} |")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("ringtrain", "torch"):
        {"ringtrain": ringtrain_rank, "torch": torch_rank}[sys.argv[1]](Path(sys.argv[2]))
    else:
        main()
