"""Commands that read the files of runs, after someone has edited, replaced or deleted some of these files.

The number in the name of a case is its seed, such as `test_changed_values[17]`.
"""

import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.commands import completed

from ringtrain_job.cli.main import main

# Ends when the launcher has stored a sample of the machine.
PROGRAM = """
import pathlib, time
import ringtrain as rt
from ringtrain.optim import SGD, HostOptimizer
rt.init()
rt.report_config({"lr": 0.1, "seed": rt.rank()})
optimizer = HostOptimizer({"w": [0.0] * 60}, SGD(lr=0.1))
for step in range(1, 5):
    optimizer.submit("w", [1.0] * 60)
    optimizer.step()
    loss = float("nan") if step == 4 else 1 / step
    rt.report(step, total_steps=5, samples=8, loss=loss, metrics={"accuracy": step / 5}, epoch=1)
print("done", flush=True)
end = time.monotonic() + 60
while not pathlib.Path("runs/local/edited/1/machine.jsonl").exists() and time.monotonic() < end:
    time.sleep(0.02)
rt.barrier()
if rt.rank() == 1:
    raise ValueError("bad sample")
"""
# JSON texts of values of other types, beyond limits, and of NaN.
WRONG = (
    "null", '"x"', "5", "-1", "1" + "0" * 400, "1" + "0" * 30, "1e999", "NaN", "9e9", "[]", "{}", "true",
    '"\\ud800\\u001b\\n"', "[" * 100_000, '{"a":' * 20_000, "[1]", '{"x": [1]}',
)  # fmt: skip
TEXT_FILES = (".outcome.json", "run.json", "timeline.json", "events.jsonl", "metrics.jsonl", "machine.jsonl")
FILES = (*TEXT_FILES, "job.log", "rank-0000.log", ".journal")
SEEDS = range(40)


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `edited`, whose rank 1 has failed, and its copy `intact`."""
    return record_runs(tmp_path_factory.mktemp("edited"))


def record_runs(folder: Path) -> Path:
    (folder / "train.py").write_text(PROGRAM)
    words = ["run", "-q", "-np", "2", "--name", "edited", sys.executable, "train.py"]
    environment = {**os.environ, "RINGTRAIN_TIMELINE": "timeline.json"}
    completed([sys.executable, "-m", "ringtrain", *words], cwd=folder, env=environment)
    shutil.copytree(folder / "runs/local/edited", folder / "runs/local/intact")
    assert all((folder / "runs/local/edited/1" / name).exists() for name in FILES)
    return folder / "runs"


@pytest.fixture
def runs(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "runs"))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in `value`."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield from places(one, (*at, name))


def with_changed_value(text: str, choose: random.Random) -> str:
    """Return the JSON `text` with one of its values replaced."""
    document, mark = json.loads(text), "<changed>"
    *path, last = choose.choice([at for at in places({"": document}) if at])
    found = whole = {"": document}
    for name in path:
        found = found[name]
    found[last] = mark
    return json.dumps(whole[""]).replace(json.dumps(mark), choose.choice(WRONG))


def change_values(attempt: Path, seed: int) -> None:
    """Change one value in each JSON file. In a file of lines, change one of them."""
    choose = random.Random(seed)
    for name in TEXT_FILES:
        lines = (attempt / name).read_text().splitlines() if name.endswith("l") else [(attempt / name).read_text()]
        at = choose.randrange(len(lines))
        lines[at] = with_changed_value(lines[at], choose)
        (attempt / name).write_text("\n".join(lines) + "\n")


def run_command(*words: str) -> Result:
    """Run a command, which may end with an error of one line and with nothing else."""
    done = CliRunner(env={"RINGTRAIN_JOB_NAME": None}).invoke(main, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"ringtrain {' '.join(words)}") from done.exception
    assert done.exit_code in (0, 1), done.output
    if done.exit_code:
        assert re.fullmatch(r"Error: [^\n]+\n", done.stderr), done.output
        assert not re.search(r"Error:.*(Error|Exception)\b", done.stderr), done.output
    return done


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_commands(runs: Path) -> None:
    """Run all commands that read runs. Check that they describe `intact` as usual, and that their data is valid."""
    option = ("--runs", str(runs))
    listed = json.loads(run_command("list", *option, "-o", "json").stdout, parse_constant=_refuse)
    assert {run["name"] for run in listed} == {"edited", "intact"}
    assert [(run["state"], run["shown"]["steps"]) for run in listed if run["name"] == "intact"] == [("Failed", "4/5")]
    run_command("list", *option)
    assert run_command("compare", "edited", "intact", *option).exit_code == 0
    shown = Path(run_command("report", "edited", *option).stdout.strip())
    data = re.search(r'id="data">(.*?)</script>', shown.read_text())
    assert data is not None
    document = json.loads(data[1], parse_constant=_refuse)
    assert document["summary"]["state"] in ("Failed", "Killed")
    assert (document["summary"]["ended"] or 0.0) < time.time() + 100_000
    for words in ((), ("--rank", "0"), ("--rank", "1"), ("--reports",), ("--tail", "3")):
        run_command("logs", "edited", *option, *words)
    assert run_command("export", "edited", *option, "--to", "tensorboard").exit_code == 0
    timeline = runs / "local/edited/1/timeline.json"
    if timeline.is_file():
        parts = re.findall(r"(\S+) %", run_command("timeline", str(timeline)).stdout)
        assert all(0 <= int(part) <= 100 for part in parts), parts


@pytest.mark.parametrize("seed", SEEDS)
def test_changed_values(runs: Path, seed: int) -> None:
    """A value of another type or beyond its limits counts as missing; no command fails."""
    change_values(runs / "local/edited/1", seed)
    check_commands(runs)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["missing", "folder", "empty", "binary"])
def test_changed_files(runs: Path, name: str, change: str) -> None:
    """The same is true of whole files."""
    path = runs / "local/edited/1" / name
    path.unlink()
    changes: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "empty": path.touch,
        "binary": lambda: path.write_bytes(bytes(range(256)) * 8),
    }
    changes.get(change, bool)()
    check_commands(runs)
