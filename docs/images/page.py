"""Make the pictures of page and report: `python docs/images/page.py`. Trains a little, and needs chromium."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from support.browser import open_browser  # noqa: E402

# Eight ranks, of which one waits longest for its input and another one computes longer than all others.
TRAIN = """
import math, random, sys, time, pathlib
import ringtrain as rt
rt.init()
from ringtrain.optim import SGD, HostOptimizer
chance = random.Random(rt.rank())
class Slow(SGD):
    def update(self, *args):
        time.sleep(0.004)
        super().update(*args)
def batches():
    for step in range(1, 241):
        time.sleep(0.006 * (0.3 + chance.random() + (2 if rt.rank() == 5 else 0)))
        yield step
optimizer = HostOptimizer({"w": [0.0] * 1000}, Slow(lr=0.1), clip_norm=1.0)
for step in rt.timeline.inputs(batches()):
    time.sleep(0.02 + (0.02 if rt.rank() == 2 else 0) + 0.003 * chance.random())
    optimizer.submit("w", [1.0] * 1000)
    optimizer.step()
    loss = 2.3 * math.exp(-step / 70) + 0.15 + chance.gauss(0, 0.03)
    rt.report(step, total_steps=240, samples=64, loss=loss, unit="images",
              metrics={"accuracy": 1 - math.exp(-step / 60), "learning rate": 0.05 * (1 + math.cos(step / 80))})
    if step % 10 == 0:
        print(f"epoch {step // 60} step {step} loss {loss:.4f}", flush=True)
    if step == 190 and rt.rank() == 3 and sys.argv[1:] == ["fail"]:
        raise ValueError("sample 48213 of shard 3 has 0 pixels")
"""


def _run(folder: Path, *words: str) -> tuple[subprocess.Popen[bytes], str]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "ringtrain", "run", "-np", "8", "--ui", "--name", "digits", "python"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [*command, "train.py", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=err, env=env
        )
    deadline = time.monotonic() + 60
    while not (found := re.search(r"page: (\S+)\n", (folder / "err").read_text())):
        assert time.monotonic() < deadline, "no link"
        time.sleep(0.1)
    return process, found[1]


async def _picture(folder: Path, name: str, until: str, *words: str, width: int = 1000, dark: bool = False) -> None:
    process, link = await asyncio.to_thread(_run, Path(tempfile.gettempdir()) / "training", *words)
    async with open_browser(folder / f"{name}-browser") as tab:
        await tab.visit(link, width, dark=dark, ends_at=link.partition("?")[0])
        await tab.until(until)
        await tab.picture(HERE / f"{name}.png", height=await tab.value("document.body.scrollHeight"))
    await asyncio.to_thread(process.wait, 120)


async def _picture_of_the_report(folder: Path) -> None:
    """Of the run that was shown last, which is over."""
    command = [sys.executable, "-m", "ringtrain", "report", str(Path(tempfile.gettempdir()) / "training")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    async with open_browser(folder / "report-browser") as tab:
        await tab.open(Path(made), 1000)
        await tab.picture(HERE / "report.png", height=await tab.value("document.body.scrollHeight"))


async def _main() -> None:
    step = "Number(document.getElementById('facts').innerText.match(/(\\d+) of 240/)?.[1]) >= 150"
    failed = "document.getElementById('state').innerText === '✗ Failed'"
    with tempfile.TemporaryDirectory() as folder:
        await _picture(Path(folder), "page", step)
        await _picture(Path(folder), "page-narrow", failed, "fail", width=360, dark=True)
        await _picture_of_the_report(Path(folder))


if __name__ == "__main__":
    asyncio.run(_main())
