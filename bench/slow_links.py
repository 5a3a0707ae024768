"""Seconds until a small language model has the loss of a synchronous training, at 100 Mbit/s and 40 ms.

    python -m bench.slow_links [--sites 2] [--steps 200] [--only WORD] [--output FILE]

Sites of one rank with one thread each, as network namespaces (needs root); characters of this project's decisions;
a transformer of 9.6 million parameters, whose gradients are 38 MB a step. Every contender starts from the same
weights and draws the same batches. The synchronous ones take `--steps` steps, and the loss on held-out text that
`HostOptimizer` ends with is the target; the others take half as many more. Forward and backward pass take a
certain time, of which a part is work and the rest a pause, as on a device with a processor of its own. Gradients
that left travel meanwhile. Contenders run one after the other; torchft where it can be imported.

A synchronous step takes as long as every other one. So the losses of synchronous contenders come from a run on
links without a limit and without the pause, and their seconds from some steps on the slow links.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.hosts import Namespaces, distant_sites, namespaces
from bench.machine import machine

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "slow_links.json"
WIDTH, LAYERS, CONTEXT, BATCH = 512, 3, 64, 1
RATE, ONE_WAY_S = "100mbit", 0.02
SYNC_EVERY, LOOK_EVERY = 50, 10
# By the number of sites: more of them exchange for longer.
OVERLAP_STEPS = {2: 5, 4: 10}
# Of synchronous contenders on the slow links; the first ones don't count.
TIMED_STEPS, FIRST_STEPS = 8, 2
PACE_S = 0.2
INNER_LR, OUTER = 4e-4, {"lr": 0.7, "momentum": 0.9}
DEADLINE_S = 420.0


@dataclass(frozen=True)
class Trainer:
    """A contender's training of a model: `forward`, `step` after a backward pass, and at the end `finish`, which
    returns further results."""

    forward: Callable[[Any], Any]
    step: Callable[[], Any]
    finish: Callable[[], dict[str, float]] = dict


def _host_optimizer(model: Any, inner: Any, compression: str | None = None) -> Trainer:
    import ringtrain.torch as hvd

    hvd.init()
    return Trainer(model, hvd.HostOptimizer(inner, model, compression=compression, update_during_backward=True).step)


def _ddp(model: Any, inner: Any) -> Trainer:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    return Trainer(DistributedDataParallel(model, gradient_as_bucket_view=True), inner.step)


def _diloco(model: Any, inner: Any, **options: Any) -> Trainer:
    import ringtrain.torch as hvd
    from ringtrain.optim import Nesterov

    hvd.init()
    optimizer = hvd.DiLoCo(model, inner=inner, outer=Nesterov(**OUTER), sync_every=SYNC_EVERY, **options)

    def finish() -> dict[str, float]:
        during = optimizer.outer.hidden_share
        optimizer.finish()
        hidden = {"hidden_share": during, "hidden_share_with_last": optimizer.outer.hidden_share}
        return {**hidden, "sync_bytes": optimizer.outer.sync_bytes}

    return Trainer(model, optimizer.step, finish)


def _streaming_diloco(model: Any, inner: Any) -> Trainer:
    overlap_steps = OVERLAP_STEPS[int(os.environ["WORLD_SIZE"])]
    return _diloco(model, inner, fragments=2, overlap_steps=overlap_steps, mix=0.5, compression="int8")


def _torchft(model: Any, inner: Any) -> Trainer:
    import torch
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank, own = int(os.environ["RANK"]), f"10.77.0.{int(os.environ['RANK']) + 1}"
    sites = int(os.environ["WORLD_SIZE"])
    alive: list[Any] = [LighthouseServer("10.77.0.1:29510", min_replicas=sites)] if rank == 0 else []
    store = dist.TCPStore(own, 29511, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(), None, None, sites, False, rank=0, world_size=1, store_addr=own, store_port=29511,
        lighthouse_addr="http://10.77.0.1:29510", replica_id=f"site{rank}", hostname=own, init_sync=False,
    )  # fmt: skip
    alive += [store, manager]
    outer = torch.optim.SGD(model.parameters(), **OUTER, nesterov=True)
    DiLoCo(manager, [model], inner, outer, SYNC_EVERY, use_bucketization=True, bucket_cap_mb=64).__enter__()

    def finish() -> dict[str, float]:
        manager.shutdown(wait=False)
        alive.clear()
        return {}

    return Trainer(model, inner.step, finish)


CONTENDERS: dict[str, Callable[[Any, Any], Trainer]] = {
    "HostOptimizer": _host_optimizer,
    "DDP, gloo": _ddp,
    "HostOptimizer, int8": partial(_host_optimizer, compression="int8"),
    "DiLoCo": _diloco,
    "DiLoCo, int8": partial(_diloco, compression="int8"),
    "Streaming DiLoCo, int8": _streaming_diloco,
    "torchft's DiLoCo": _torchft,
}
SYNCHRONOUS = 3


def rank_main(contender: str, steps: int, pace_s: float, output: Path) -> None:
    """One rank: train, and write what it saw."""
    import torch
    from torch.nn import functional

    sys.path.insert(0, str(ROOT / "examples" / "frameworks"))
    from torch_lm import LanguageModel, batch_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    content = "".join(path.read_text() for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")))
    alphabet = {character: index for index, character in enumerate(sorted(set(content)))}
    text = torch.tensor([alphabet[character] for character in content])
    held_out = text[-len(text) // 10 :]
    unseen = batch_of(held_out, CONTEXT, 32, torch.Generator().manual_seed(7))
    model = LanguageModel(len(alphabet), WIDTH, LAYERS, CONTEXT)
    inner = torch.optim.AdamW(model.parameters(), lr=INNER_LR)
    scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda done: min(1.0, (done + 1) / 20))
    trainer = CONTENDERS[contender](model, inner)
    batches = torch.Generator().manual_seed(1000 + int(os.environ["RANK"]))

    def look(step: int) -> None:
        looks.append(-time.perf_counter())
        with torch.no_grad():
            loss = functional.cross_entropy(model(unseen[0]).flatten(0, 1), unseen[1].flatten())
        looks.append(time.perf_counter())
        seen.append((step, time.perf_counter() - began - sum(looks), loss.item()))

    seen: list[tuple[int, float, float]] = []
    looks: list[float] = []  # when they began, less than zero, and ended: they don't count
    began = time.perf_counter()
    ends: list[float] = []
    for step in range(1, steps + 1):
        paced = time.perf_counter() + pace_s
        inputs, targets = batch_of(text[: -len(held_out)], CONTEXT, BATCH, batches)
        functional.cross_entropy(trainer.forward(inputs).flatten(0, 1), targets.flatten()).backward()
        time.sleep(max(0.0, paced - time.perf_counter()))
        trainer.step()
        inner.zero_grad()
        scheduler.step()
        ends.append(time.perf_counter())
        if step % LOOK_EVERY == 0:
            look(step)
    told = trainer.finish()
    look(steps)
    size = sum(p.numel() for p in model.parameters())
    output.write_text(json.dumps({"seen": seen, "ends": ends, "parameters": size, **told}))
    sys.stdout.flush()
    os._exit(0)  # peers' libraries take their time to tear down


def measure(contender: str, steps: int, hosts: Namespaces, pace_s: float = PACE_S) -> dict[str, Any]:
    """Train on all sites. The losses are means over the ranks, the seconds those of the slowest one; `step_s`: of
    a step but the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"rank{rank}" for rank in range(hosts.ranks)]
        words = ["-m", "bench.slow_links", "--rank", contender, "--steps", str(steps), "--pace", str(pace_s)]
        commands = hosts.commands(contender, [sys.executable, *words])
        before, cpu = hosts.sent_bytes(), os.times()
        processes = [
            subprocess.Popen([*command, "--output", str(out)], cwd=ROOT, env=os.environ | env)
            for (command, env), out in zip(commands, outputs, strict=True)
        ]
        try:
            for process in processes:
                process.wait(DEADLINE_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        ended = os.times()
        told = [json.loads(output.read_text()) for output in outputs]
    curve = [
        {"step": of[0][0], "seconds": max(one[1] for one in of), "loss": sum(one[2] for one in of) / len(of)}
        for of in zip(*(one.pop("seen") for one in told), strict=True)
    ]
    ends = [one.pop("ends") for one in told]
    spent = ended.children_user + ended.children_system - cpu.children_user - cpu.children_system
    return {
        **told[0],
        "curve": curve,
        "step_s": max(one[-1] - one[FIRST_STEPS] for one in ends) / (steps - FIRST_STEPS - 1),
        "sent_mb": (hosts.sent_bytes() - before) / 1e6 / hosts.ranks / steps,
        "cpu_s": spent,
    }


def measure_synchronous(contender: str, steps: int, sites: int) -> dict[str, Any]:
    """As `measure`, with losses of a run on links without a limit, and seconds of some steps on slow ones."""
    with namespaces(sites, None) as hosts:
        curve = measure(contender, steps, hosts, 0.0)["curve"]
    with distant_sites(sites, RATE, ONE_WAY_S) as hosts:
        timed = measure(contender, TIMED_STEPS, hosts)
    return {**timed, "curve": [{**at, "seconds": at["step"] * timed["step_s"]} for at in curve]}


def seconds_to(curve: list[dict[str, float]], target: float) -> tuple[float, int] | None:
    """Return seconds and steps until the loss, rounded to thousandths, is at most `target`; None if it never is."""
    return next(((at["seconds"], int(at["step"])) for at in curve if round(at["loss"], 3) <= target), None)


def table(results: dict[str, dict[str, Any]], target: float) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| | seconds to the target | steps | seconds a step | MB sent a step, a rank | loss at the end | hidden |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for contender, found in results.items():
        reached, last = seconds_to(found["curve"], target), found["curve"][-1]
        when = "not reached" if reached is None else f"{reached[0]:.0f}"
        after = f"of {last['step']}" if reached is None else str(reached[1])
        seconds, sent = last["seconds"] / last["step"], found["sent_mb"]
        hidden = f"{found['hidden_share']:.0%}" if "hidden_share" in found else ""
        loss = f"{last['loss']:.3f}"
        lines.append(f"| {contender} | {when} | {after} | {seconds:.2f} | {sent:.2f} | {loss} | {hidden} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", default="", help="contenders with this in their name; others stay as they were")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, default=PACE_S, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options.rank, options.steps, options.pace, options.output)
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    results: dict[str, dict[str, Any]] = kept.get(f"{options.sites} sites", {}).get("contenders", {})
    for place, contender in enumerate(CONTENDERS):
        if options.only not in contender and "HostOptimizer" in results:
            continue
        if contender.startswith("torchft") and importlib.util.find_spec("torchft") is None:
            print("torchft is not installed, and left out", file=sys.stderr)
            continue
        if place < SYNCHRONOUS:
            results[contender] = measure_synchronous(contender, options.steps, options.sites)
        else:
            with distant_sites(options.sites, RATE, ONE_WAY_S) as hosts:
                results[contender] = measure(contender, options.steps * 3 // 2, hosts)
        target = round(results["HostOptimizer"]["curve"][-1]["loss"], 3)
        about = {"machine": machine(), "target": target, "rate": RATE, "one_way_s": ONE_WAY_S}
        kept[f"{options.sites} sites"] = {**about, "contenders": results}
        options.output.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"target: a held-out loss of {target:.3f}\n{table(results, target)}\n", flush=True)


if __name__ == "__main__":
    main()
