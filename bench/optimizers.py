"""Training steps with optimizer state off the device or divided among ranks: ours beside DDP, ZeroRedundancyOptimizer,
FSDP2 and DeepSpeed's ZeRO-2 with the optimizer on the host. CPUs, gloo.

    python -m bench.optimizers --models resnet50 --ranks 2 4      # ZeRO-2 needs `pip install deepspeed` and a compiler

Our ways and one peer are started together and take turns; each peer gets a run of its own, because the ranks of all
peers do not fit into memory together. Prints a Markdown table: median milliseconds of a step (the slowest rank's), the
peer's time over ours, peak memory of a rank (resident; and without the pages that it shares with other ranks counted
more than once), and megabytes on the wire for a step. Writes results/optimizers.json.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cases import GRPC, SHM
from bench.contest import Gang, Rounds, contest, gangs
from bench.hosts import Loopback

RESULTS = Path(__file__).parent / "results/optimizers.json"
OURS = {
    "ringtrain-host-shm": SHM,
    "ringtrain-host-grpc": GRPC,
    "ringtrain-distributed-shm": SHM,
    "ringtrain-distributed-grpc": GRPC,
}
PEERS = {
    "ddp": "DDP, AdamW fused",
    "zero": "DDP, ZeroRedundancyOptimizer",
    "fsdp2": "FSDP2, no reshard after forward",
    "deepspeed": "DeepSpeed ZeRO-2, optimizer on the host",
}
_DEEPSPEED = {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1"}


def measure(model: str, ranks: int, seconds: float, peers: Sequence[str], ours: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each contender of each run."""
    rows = []
    work = {"kind": "optimizer", "model": model}
    for peer in peers:
        contenders = {name: OURS[name] for name in ours} | {peer: _DEEPSPEED if peer == "deepspeed" else {}}
        with gangs(contenders, Loopback(ranks)) as running:
            # Twelve to warm up: in its first ten steps DistributedOptimizer compares all bits of a gradient.
            found = contest(running, Rounds(seconds, 5, 12, 4), work)
            memory = {gang.contender: _largest_memory(gang) for gang in running if not gang.has_ended}
        for name, summary in found.items():
            row = {"model": model, "ranks": ranks, "beside": peer, "contender": name, **summary, **memory[name]}
            rows.append(row)
    return rows


def _largest_memory(gang: Gang) -> dict[str, float]:
    found = gang.ask({"kind": "memory"})
    return {f"{name}_mb": max(one[name] for one in found) for name in ("peak", "share")}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| model, ranks | | step, ms | peer's time over ours | peak MB of a rank | its share, MB | MB on the wire |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        peer = next((r for r in rows if _run(r) == _run(row) and r["contender"] == row["beside"]), None)
        is_peer = row["contender"] == row["beside"]
        ratio = "" if is_peer or peer is None else f"{peer['median_s'] / row['median_s']:.2f}"
        name = PEERS[row["beside"]] if is_peer else f"{row['contender']}, beside {row['beside']}"
        figures = f"{1e3 * row['median_s']:.0f} | {ratio} | {row['peak_mb']:.0f} | {row['share_mb']:.0f}"
        lines.append(f"| {row['model']}, {row['ranks']} | {name} | {figures} | {row['wire_bytes'] / 1e6:.0f} |")
    return "\n".join(lines)


def _run(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["ranks"], row["beside"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50"], choices=["resnet50", "gpt2"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--ours", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run, for all contenders together")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in args.models:
        for ranks in args.ranks:
            rows += measure(model, ranks, args.seconds, args.peers, args.ours)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
