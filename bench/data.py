"""Speed of a training whose loader takes as long as its step, beside PyTorch's DataLoader and tf.data's service.

    python -m bench.data --steps 60 --processes 2

The step is a wait, as that of a device; the loader is processor time: it unpacks 8 x 8 blocks of coefficients and
takes them through the inverse cosine transform, as a JPEG decoder does. In the process itself the two add up. Ways
take turns in one run, with the same number of loading processes each; results are ratios to a loop without input.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PIXELS, BATCH = 128, 64
BLOCKS = (PIXELS // 8) ** 2
LINE = np.arange(8)
COSINES = np.cos((2 * LINE[None, :] + 1) * LINE[:, None] * np.pi / 16).astype(np.float32) / 2
COSINES[0] /= np.sqrt(2)
QUANTUM = (4 + LINE[:, None] + LINE[None, :]).astype(np.float32)


def packed(seed: int) -> bytes:
    """One image as quantized coefficients, most of which are 0, packed."""
    chance = np.random.default_rng(seed)
    kept = chance.random((BLOCKS, 8, 8)) < 0.2
    return zlib.compress((chance.integers(-20, 20, (BLOCKS, 8, 8)) * kept).astype(np.int16).tobytes())


IMAGES = [packed(seed) for seed in range(32)]
REPEATS = int(os.environ.get("BENCH_DATA_REPEATS", "1"))


def decode(image: bytes) -> np.ndarray[Any, Any]:
    """Unpack, scale, transform, and put the blocks together."""
    blocks = np.frombuffer(zlib.decompress(image), np.int16).reshape(BLOCKS, 8, 8)
    for _ in range(REPEATS):
        pixels = COSINES.T @ (blocks * QUANTUM) @ COSINES
    side = PIXELS // 8
    whole = pixels.reshape(side, side, 8, 8).transpose(0, 2, 1, 3).reshape(PIXELS, PIXELS)
    return np.clip(whole + 128, 0, 255).astype(np.uint8)


def load(indices: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A batch, as a data worker is asked for it."""
    return {"image": np.stack([decode(IMAGES[index % len(IMAGES)]) for index in indices])}


class Images:
    """The same for PyTorch's DataLoader."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return decode(IMAGES[index % len(IMAGES)])


def in_process(steps: int, processes: int) -> Iterator[Any]:
    """The loader in the training's own process."""
    for step in range(steps):
        yield load(np.arange(step * BATCH, (step + 1) * BATCH))["image"]


def ringtrain_stream(steps: int, processes: int) -> Iterator[Any]:
    """Data workers, of one loader process each."""
    from ringtrain.data import shard
    from ringtrain.data.service import distribute

    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        entries = [serve(index, stack) for index in range(processes)]
        file = Path(directory) / "workers.json"
        file.write_text(json.dumps({"version": 1, "kind": "ringtrain", "workers": entries, "dispatchers": []}))
        os.environ["RINGTRAIN_DATA_WORKERS_FILE"] = str(file)
        order = shard(steps * BATCH, BATCH, rank=0, size=1)
        for batch in distribute("bench.data:load", order, epoch=0, prefetch=2 * processes):
            yield batch["image"]


def serve(index: int, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Start a data worker; its entry in the file."""
    environment = {**os.environ, "RINGTRAIN_DATA_INDEX": str(index), "RINGTRAIN_DATA_PORT": "0"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "ringtrain", "data-worker"], env=environment, stderr=subprocess.PIPE, text=True
    )
    stack.callback(worker.wait)
    stack.callback(worker.terminate)
    assert worker.stderr is not None
    port = worker.stderr.readline().rpartition("port ")[2].strip()
    return {"index": index, "address": f"127.0.0.1:{port}"}


def torch_loader(steps: int, processes: int) -> Iterator[Any]:
    """PyTorch's DataLoader with worker processes."""
    import torch

    images: Any = Images()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(images, range(steps * BATCH)), BATCH, num_workers=processes, prefetch_factor=2
    )
    yield from loader


def tf_service(steps: int, processes: int) -> Iterator[Any]:
    """tf.data's service with worker processes, and the decoder in TensorFlow's operations."""
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    code = (
        "import sys, tensorflow as tf; s = tf.data.experimental.service;"
        f"w = s.WorkerServer(s.WorkerConfig(dispatcher_address={address!r})); print('up', flush=True); w.join()"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            assert worker.stdout is not None
            worker.stdout.readline()
        cosines, quantum = tf.constant(COSINES), tf.constant(QUANTUM)

        def decoded(image: Any) -> Any:
            raw = tf.io.decode_raw(tf.io.decode_compressed(image, "ZLIB"), tf.int16)
            blocks = tf.cast(tf.reshape(raw, (BLOCKS, 8, 8)), tf.float32)
            pixels = blocks
            for _ in range(REPEATS):
                pixels = tf.matmul(tf.matmul(cosines, blocks * quantum, transpose_a=True), cosines)
            side = PIXELS // 8
            whole = tf.reshape(tf.transpose(tf.reshape(pixels, (side, side, 8, 8)), (0, 2, 1, 3)), (PIXELS, PIXELS))
            return tf.cast(tf.clip_by_value(whole + 128, 0, 255), tf.uint8)

        images = tf.data.Dataset.from_tensor_slices(IMAGES).repeat().take(steps * BATCH).map(decoded).batch(BATCH)
        yield from images.apply(
            service.distribute(service.ShardingPolicy.DYNAMIC, dispatcher.target, max_outstanding_requests=8)
        ).prefetch(4)


WAYS: dict[str, Callable[[int, int], Iterator[Any]]] = {
    "in the process": in_process,
    "Ringtrain's data workers": ringtrain_stream,
    "PyTorch's DataLoader": torch_loader,
    "tf.data's service": tf_service,
}


def timed(way: Callable[[int, int], Iterator[Any]], steps: int, processes: int, step_s: float) -> float:
    """Seconds a step, without the first quarter, in which processes start, and without the end of processes."""
    ends = []
    for _ in way(steps, processes):
        time.sleep(step_s)
        ends.append(time.perf_counter())
    warm = max(1, steps // 4)
    return (ends[-1] - ends[warm - 1]) / (len(ends) - warm)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    for step in range(10):
        load(np.arange(step, step + BATCH))
    step_s = (time.perf_counter() - began) / 10
    free = timed(lambda steps, _: iter(range(steps)), options.steps, 0, step_s)
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, way in WAYS.items():
            with contextlib.suppress(ImportError):
                found[name].append(free / timed(way, options.steps, options.processes, step_s))
    print(f"step {step_s * 1e3:.1f} ms, {options.processes} loading processes, load {os.getloadavg()[0]:.1f}")
    for name, ratios in found.items():
        text = f"{statistics.median(ratios):.2f} ({', '.join(f'{one:.2f}' for one in ratios)})" if ratios else "-"
        print(f"| {name} | {text} |")


if __name__ == "__main__":
    main()
