"""Time that a checkpoint to S3 blocks training: Ringtrain's, and `torch.distributed.checkpoint.async_save`.

    python -m bench.checkpoint          two ranks, 25.6 million parameters with AdamW, moto's S3 server

Both save the same arrays to the same server in the background. `blocked` is the time until the call returns with
the state copied; `whole` is the time until the checkpoint can be read. Torch's ranks hold the same state as
Ringtrain's: each has half of the moments, and all weights. Ranks of both run with the allocator settings (MALLOC) that
the agent sets.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARAMETERS = 25_600_000
ROUNDS = 4
RANKS = 2


def ours(uri: str) -> list[dict[str, float]]:
    import numpy as np

    import ringtrain as rt
    from ringtrain.checkpoint import ShardedCheckpoints
    from ringtrain.optim import HostOptimizer
    from ringtrain.optim.rules import AdamW

    rt.init()
    optimizer = HostOptimizer({f"p{n}": np.ones(PARAMETERS // 10, np.float32) for n in range(10)}, AdamW(lr=0.1))
    found = []
    with ShardedCheckpoints(uri, keep=1) as checkpoints:
        for step in range(ROUNDS + 1):
            rt.barrier()
            began = time.perf_counter()
            checkpoints.save(step, {"optimizer": optimizer.shard_dict()}, background=True)
            blocked = time.perf_counter() - began
            checkpoints.finish()
            rt.barrier()
            found.append({"blocked": blocked, "whole": time.perf_counter() - began})
    rt.shutdown()
    return found[1:]


def torchs(uri: str) -> list[dict[str, float]]:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state: dict[str, Any] = {f"p{n}": torch.ones(PARAMETERS // 10) for n in range(10)}
    for slot in ("m", "v"):  # of the rank alone, as a shard is
        state |= {f"{slot}{n}-{rank}": torch.ones(PARAMETERS // 10 // RANKS) for n in range(10)}
    found = []
    for step in range(ROUNDS + 1):
        dist.barrier()
        began = time.perf_counter()
        saved = dcp.async_save(state, storage_writer=FsspecWriter(f"{uri}/{step}"))
        blocked = time.perf_counter() - began
        saved.result()
        dist.barrier()
        found.append({"blocked": blocked, "whole": time.perf_counter() - began})
    dist.destroy_process_group()
    return found[1:]


def main() -> None:
    """Run both in turn, each with ranks of its own, and write what was measured."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.objectstore import BUCKET, environment, s3_server

    from ringtrain_job.agent.rank_env import MALLOC

    results: dict[str, Any] = {"parameters": PARAMETERS, "ranks": RANKS, "rounds": ROUNDS}
    with s3_server() as server:
        for name in ("ours", "torch"):
            words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--standalone"]
            uri = f"s3://{BUCKET}/bench-{name}"
            told = os.environ | MALLOC | environment(server.url)
            done = subprocess.run(
                [*words, "-m", "bench.checkpoint", name, uri],
                env=told,
                capture_output=True,
                text=True,
                timeout=500,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
            if done.returncode or not lines:
                raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-3000:]}")
            rounds = json.loads(lines[0])
            results[name] = {kind: statistics.median(row[kind] for row in rounds) for kind in ("blocked", "whole")}
    for kind in ("blocked", "whole"):
        results[f"torch / ours, {kind}"] = results["torch"][kind] / results["ours"][kind]
    print(json.dumps(results, indent=1))
    Path(__file__).with_name("results").joinpath("checkpoint.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rows = {"ours": ours, "torch": torchs}[sys.argv[1]](sys.argv[2])
        if os.environ["RANK"] == "0":
            print(json.dumps(rows), flush=True)
    else:
        main()
