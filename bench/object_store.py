"""Time to write and read objects: Ringtrain's stores and fsspec's driver s3fs, on the same server.

    pip install s3fs
    python -m bench.object_store          moto's S3 server in a process of its own, on this machine

An object of 64 MiB, and 100 of 4 KiB one after the other, each written and read. The server is Python, and takes most
of the time of a small object.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 5
LARGE, SMALL, SMALL_OBJECTS = 64 << 20, 4 << 10, 100
SERVER = """
import sys
from support.objectstore import s3_server
with s3_server() as server:
    print("at", server.url, flush=True)
    sys.stdin.read()
"""
Put, Get = Callable[[str, bytes], object], Callable[[str], bytes]


def main() -> None:
    """Measure both in turn, some rounds, and print medians in ms and their ratios."""
    tests = Path(__file__).parents[1] / "tests"
    sys.path.insert(0, str(tests))
    from support.objectstore import BUCKET, environment

    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tests)},
    ) as server:
        assert server.stdout is not None
        url = next(line.split()[1] for line in server.stdout if line.startswith("at "))
        os.environ.update(environment(url))
        ways = {"ringtrain": _ringtrain(BUCKET), "s3fs": _s3fs(BUCKET)}
        rounds = [{name: _measure(*way, name) for name, way in ways.items()} for _ in range(ROUNDS + 1)][1:]
        server.kill()
    found = {
        name: {what: statistics.median(r[name][what] for r in rounds) for what in rounds[0][name]} for name in ways
    }
    print("| ms | ringtrain | s3fs | s3fs / ringtrain |\n| --- | --- | --- | --- |")
    for what, ours in found["ringtrain"].items():
        theirs = found["s3fs"][what]
        print(f"| {what} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |")
    Path(__file__).with_name("results").joinpath("object_store.json").write_text(json.dumps(found, indent=1) + "\n")


def _measure(put: Put, get: Get, prefix: str) -> dict[str, float]:
    large, small = os.urandom(LARGE), os.urandom(SMALL)
    names = [f"{prefix}-{n}" for n in range(SMALL_OBJECTS)]
    found: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        done = work()
        found[what] = 1e3 * (time.perf_counter() - began)
        return done

    timed("64 MiB written", lambda: put(f"{prefix}-large", large))
    assert timed("64 MiB read", lambda: get(f"{prefix}-large")) == large
    timed("100 of 4 KiB written", lambda: [put(name, small) for name in names])
    assert timed("100 of 4 KiB read", lambda: [get(name) for name in names])[-1] == small
    return found


def _ringtrain(bucket: str) -> tuple[Put, Get]:
    from ringtrain.shared.storage import ObjectStore

    store = ObjectStore(f"s3://{bucket}/bench")
    return store.write, store.read


def _s3fs(bucket: str) -> tuple[Put, Get]:
    import s3fs

    files = s3fs.S3FileSystem(use_listings_cache=False)
    return lambda name, data: files.pipe_file(f"{bucket}/{name}", data), lambda name: files.cat_file(f"{bucket}/{name}")


if __name__ == "__main__":
    main()
