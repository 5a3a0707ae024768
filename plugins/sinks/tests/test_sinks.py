"""Destinations of reports other than a run's files: content of MLflow's server and of W&B's files after real runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import completed
from support.deadlines import patient
from support.gang import GangProcesses, until
from support.needs import need
from support.ports import free_ports

pytestmark = pytest.mark.slow
MakeGang = Callable[..., GangProcesses]
# Not on the path of other tests: `make .venv/.sinks`.
PACKAGES = Path(sys.prefix) / "sinks"
# Rank FAILS fails at its end. Both ranks' loss differs by 2, so that their mean is the step.
RANK = """
import os, ringtrain as rt
rt.init()
rt.report_config({"lr": 0.1, "optimizer": {"name": "sgd"}, "api_key": "s3cr3t-of-the-user"})
for step in range(1, 6):
    rt.report(step, samples=8, loss=step - 1 + 2 * rt.rank(), metrics={"top-1 (%)": step / 2})
    rt.barrier()
raise SystemExit(3 if os.environ["RANK"] == os.environ.get("FAILS") else 0)
"""

GOES_ON = """
import pathlib, time
end, step = time.monotonic() + 120, 5
while not pathlib.Path(os.environ["GO_ON"]).exists() and time.monotonic() < end:
    time.sleep(0.5)
    step += 1
    rt.report(step, loss=step - 1 + 2 * rt.rank())
"""


def packages(*names: str) -> dict[str, str]:
    """The environment in which packages are found. Skips where one is not installed."""
    for name in names:
        if not (PACKAGES / name).is_dir():
            pytest.skip(f"{name} is not in {PACKAGES}: make .venv/.sinks")
    return {"PYTHONPATH": str(PACKAGES)}


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """MLflow's own server, with a database in `folder`; the address is ready when it answers."""
    folder.mkdir(exist_ok=True)
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder / 'db.sqlite'}", "--default-artifact-root", str(folder)]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            env={**os.environ, **packages("mlflow"), **quiet},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"{url}/health", timeout=patient(10)).read() == b"OK")
        except OSError:
            assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
            return False

    try:
        until("MLflow's server answers", answers)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that all tests of this file share."""
    (port,) = free_ports(1)
    with mlflow_server(tmp_path_factory.mktemp("mlflow"), port) as url:
        yield url


def ask(url: str, path: str, **document: Any) -> Any:
    """Return the answer of MLflow's REST API."""
    body = json.dumps(document).encode()
    asked = urllib.request.Request(f"{url}/api/2.0/mlflow/{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=patient(60)) as answer:
        return json.load(answer)


def runs_of(url: str, experiment: str) -> list[Any]:
    """The runs of an experiment; none before it is there."""
    try:
        with urllib.request.urlopen(
            f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={experiment}", timeout=patient(60)
        ) as answer:
            number = json.load(answer)["experiment"]["experiment_id"]
    except urllib.error.HTTPError:
        return []
    return list(ask(url, "runs/search", experiment_ids=[number]).get("runs", []))


def history(url: str, run: str, metric: str) -> list[tuple[int, float]]:
    """All points of a metric."""
    place = f"{url}/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={metric}"
    with urllib.request.urlopen(place, timeout=patient(60)) as answer:
        found = json.load(answer).get("metrics", [])
    return sorted((int(one.get("step", 0)), float(one["value"])) for one in found)


def pairs(entries: list[dict[str, str]]) -> dict[str, str]:
    return {one["key"]: one["value"] for one in entries}


def run(gang: MakeGang, name: str, **settings: str) -> tuple[GangProcesses, int]:
    """A gang of two ranks that reports to the sink `name`, at its end, and the launcher's exit code."""
    job = gang(2, 1)
    script = job.directory / "train.py"
    script.write_text(RANK)
    launcher = job.launcher(RINGTRAIN_SINKS=name, **settings)
    for index in range(2):
        job.agent(index, sys.executable, str(script), FAILS=settings.get("FAILS", ""))
    return job, launcher.wait()


def python(script: str, place: Path, **env: str) -> str:
    """Return the output of a separate Python that runs `script` with a path."""
    command = [sys.executable, "-c", script, str(place)]
    done = completed(command, env={**os.environ, **env}, timeout=patient(120))
    assert done.returncode == 0, done.stderr
    return done.stdout


MEANS = [(step, float(step)) for step in range(1, 6)]


@pytest.mark.parametrize(("fails", "code", "status"), [("", 0, "FINISHED"), ("1", 3, "FAILED")])
def test_mlflow_has_the_run(gang: MakeGang, server: str, fails: str, code: int, status: str) -> None:
    """Means over ranks at each step, parameters without secrets, tags, and the end with its cause."""
    experiment = f"of-{status.lower()}"
    told = {"MLFLOW_TRACKING_URI": server, "MLFLOW_EXPERIMENT_NAME": experiment, "FAILS": fails}
    job, found = run(gang, "mlflow", RINGTRAIN_WORKER_IMAGE="train:1", **told, **packages("mlflow"))
    assert found == code, job.pods[0].err()
    (kept,) = runs_of(server, experiment)
    assert kept["info"]["status"] == status
    assert history(server, kept["info"]["run_id"], "loss") == MEANS
    assert history(server, kept["info"]["run_id"], "top-1%20___") == [(s, s / 2) for s in range(1, 6)]
    assert [step for step, _ in history(server, kept["info"]["run_id"], "samples_per_second")] == [2, 3, 4, 5]
    params, tags = pairs(kept["data"]["params"]), pairs(kept["data"]["tags"])
    assert params == {"lr": "0.1", "optimizer.name": "sgd", "api_key": "***"}
    assert (tags["ringtrain.job"], tags["ringtrain.attempt"]) == ("default/job", "1")
    assert tags["ringtrain.image"] == "train:1"
    assert tags.get("ringtrain.failure") == ("rank 1 exited with 3" if fails else None)
    assert "s3cr3t" not in json.dumps(kept)
    assert "cannot send reports" not in job.pods[0].err()


def test_a_run_that_is_over_is_sent_once(gang: MakeGang, server: str) -> None:
    """`ringtrain export` sends the same as its launcher would have; a second time adds no run and no point."""
    job, code = run(gang, "")
    assert code == 0, job.pods[0].err()
    env = {**os.environ, **packages("mlflow"), "MLFLOW_TRACKING_URI": server, "MLFLOW_EXPERIMENT_NAME": "later"}
    command = [sys.executable, "-m", "ringtrain", "export", str(job.directory), "--to", "mlflow"]
    for _ in range(2):
        done = completed(command, env=env, timeout=patient(120))
        assert done.returncode == 0, done.stderr
    (kept,) = runs_of(server, "later")
    assert kept["info"]["status"] == "FINISHED"
    assert history(server, kept["info"]["run_id"], "loss") == MEANS


def test_a_server_that_comes_back_gets_all(gang: MakeGang, tmp_path: Path) -> None:
    """The server is unavailable when training begins; training continues, and one line reports the problem."""
    (port,) = free_ports(1)
    told = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", **packages("mlflow")}
    go_on = tmp_path / "go-on"
    program = RANK.replace("raise SystemExit", GOES_ON + "raise SystemExit")
    job = gang(2, 1)
    launcher = job.launcher(RINGTRAIN_SINKS="mlflow", **told)
    for index in range(2):
        job.agent(index, sys.executable, "-c", program, GO_ON=str(go_on))
    until("it is said", lambda: "mlflow: cannot send reports" in launcher.err())
    with mlflow_server(tmp_path / "server", port) as url:
        until("reports arrive again", lambda: "sink mlflow: sending reports works again" in launcher.err())
        (kept,) = runs_of(url, "ringtrain")
        assert history(url, kept["info"]["run_id"], "loss")[:5] == MEANS
        go_on.touch()
        assert launcher.wait() == 0
        (kept,) = runs_of(url, "ringtrain")
        assert kept["info"]["status"] == "FINISHED"
    assert launcher.err().count("cannot send reports") == 1


@pytest.mark.parametrize("kind", ["refuses", "is-silent"])
def test_a_server_that_takes_nothing_costs_seconds(gang: MakeGang, kind: str) -> None:
    """The job ends as it would have, with all its files; the launcher names the sink and the loss."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if kind == "refuses":
            listening.close()
        begun = time.monotonic()
        address = f"http://me:pa55-of-mine@127.0.0.1:{port}"
        job, code = run(gang, "mlflow", MLFLOW_TRACKING_URI=address, **packages("mlflow"))
        took = time.monotonic() - begun
    assert code == 0
    assert len((job.logs / "metrics.jsonl").read_text().splitlines()) == 10
    said = job.pods[0].err()
    assert said.count("mlflow: cannot send reports") == 1
    assert "pa55" not in said
    if kind == "refuses":
        assert "mlflow: 5 points and the end of the run were not sent" in said
    else:
        assert "the sink mlflow did not send the end of the run" in said
    assert took < 60


def test_wandb_has_the_run_as_files(gang: MakeGang) -> None:
    """W&B's messages contain history, config without secrets, and the end; no file contains a key."""
    job, code = run(gang, "wandb", **packages("wandb"), WANDB_API_KEY="k" * 40, FAILS="1")
    assert code == 3, job.pods[0].err()
    (file,) = job.logs.glob("wandb/offline-run-*/*.wandb")
    found = json.loads(python(READ, file, **packages("wandb")))
    assert [(row["_step"], row["loss"]) for row in found["history"]] == MEANS
    assert found["config"] | {"lr": 0.1, "optimizer.name": "sgd", "api_key": "***"} == found["config"]
    assert found["summary"]["ringtrain.outcome"] == "Failed"
    assert found["summary"]["ringtrain.failure"] == "rank 1 exited with 3"
    assert found["exit"] == 1
    for path in (job.logs / "wandb").rglob("*"):
        if path.is_file():
            assert b"s3cr3t" not in path.read_bytes()
            assert b"kkkkkkkk" not in path.read_bytes()


# What is in an offline run's file: W&B's own messages, in LevelDB's log format behind a header of 7 bytes, which
# only W&B's compiled program reads: blocks of 32 KiB; records with checksum, length, and which part of a message
# they are.
READ = """
import json, pathlib, struct, sys
from wandb.proto import wandb_internal_pb2 as pb

def messages(data, whole=b""):
    assert data[:4] == b":W&B"
    at = 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):
            yield whole
            whole = b""

found = {"history": [], "config": {}, "summary": {}, "exit": None}
value = lambda item: json.loads(item.value_json)
key = lambda item: item.key or "/".join(item.nested_key)
for data in messages(pathlib.Path(sys.argv[1]).read_bytes()):
    record = pb.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "history":
        found["history"].append({key(item): value(item) for item in record.history.item})
    elif kind == "config":
        found["config"] |= {key(item): value(item) for item in record.config.update}
    elif kind == "run":
        found["config"] |= {key(item): value(item) for item in record.run.config.update}
    elif kind == "summary":
        found["summary"] |= {key(item): value(item) for item in record.summary.update}
    elif kind == "exit":
        found["exit"] = record.exit.exit_code
print(json.dumps(found))
"""


def test_tensorboard_has_the_run_while_it_goes_on(gang: MakeGang) -> None:
    """Event files of each rank, by TensorBoard's own reader."""
    need("tensorboard")
    job, code = run(gang, "tensorboard")
    assert code == 0, job.pods[0].err()
    read = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
seen = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps([(one.step, one.value) for one in seen.Scalars("loss")]))
"""
    for rank in (0, 1):
        folder = job.logs / "tensorboard" / f"rank-{rank:04d}"
        done = completed([sys.executable, "-c", read, str(folder)], timeout=patient(120))
        assert json.loads(done.stdout.splitlines()[-1]) == [[s, s - 1 + 2.0 * rank] for s in range(1, 6)]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nowhere", "'nowhere' is not a sink; expected one of mlflow, tensorboard, wandb"),
        ("mlflow,wandb", "pip install 'ringtrain[mlflow]'"),
    ],
)
def test_what_cannot_be_sent_is_an_error(gang: MakeGang, named: str, message: str) -> None:
    """The launcher ends with 64 before ranks start, and names the variable and the way out."""
    launcher = gang(1, 1).launcher(RINGTRAIN_SINKS=named)
    assert launcher.wait() == 64
    assert f"RINGTRAIN_SINKS='{named}'" in launcher.err()
    assert message in launcher.err()
