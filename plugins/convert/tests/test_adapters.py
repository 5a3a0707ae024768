"""Other tools' names over jobs of this machine: the real TorchX, and Kubeflow's TrainerClient."""

import dataclasses
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import completed
from support.deadlines import patient
from support.jobs import job

from ringtrain_client.local.past_runs import write_job
from ringtrain_sdk import Invalid, LocalBackend, NotFound
from ringtrain_sdk import kubeflow as ours

OTHERS = Path(sys.prefix) / "others"
# What kubeflow's own package has, in a process of its own: it wants another version of the Kubernetes client.
THEIRS = """
import dataclasses, inspect, json
import kubeflow.trainer as theirs
from kubeflow.trainer.types import types

def default(value):
    return sorted(value) if isinstance(value, set) else None if value is inspect.Parameter.empty else value

methods = {
    name: [[p.name, str(p.kind), default(p.default)] for p in inspect.signature(method).parameters.values()]
    for name, method in inspect.getmembers(theirs.TrainerClient, inspect.isfunction)
    if name == "__init__" or not name.startswith("_")
}
names = [%s]
fields = {
    name: [field.name for field in dataclasses.fields(getattr(types, name)) if field.init] for name in names
}
enums = {name: {item.name: item.value for item in getattr(types, name)} for name in ("RuntimeKind", "TrainerType")}
print(json.dumps([methods, fields, enums]))
"""
CLASSES = ("CustomTrainer", "CustomTrainerContainer", "Event", "Runtime", "RuntimeTrainer", "Step", "TrainJob")


def environment() -> dict[str, str]:
    """Return variables with the folder that contains kubeflow and torchx; skip if they are missing."""
    for name in ("kubeflow", "torchx"):
        if not (OTHERS / name).is_dir():
            pytest.skip(f"{name} is not in {OTHERS}: make .venv/.others")
    return {**os.environ, "PYTHONPATH": str(OTHERS)}


def default(value: Any) -> Any:
    """A parameter's default as JSON has it."""
    return sorted(value) if isinstance(value, set) else None if value is inspect.Parameter.empty else value


def test_names_and_signatures_are_kubeflows() -> None:
    """Methods with their parameters and defaults, fields of what goes in and comes out, values of enumerations."""
    script = THEIRS % ", ".join(map(repr, CLASSES))
    found = completed([sys.executable, "-c", script], env=environment(), check=True)
    methods, fields, enums = json.loads(found.stdout)
    for name, parameters in methods.items():
        mine = inspect.signature(getattr(ours.TrainerClient, name)).parameters.values()
        assert [[p.name, str(p.kind), default(p.default)] for p in mine] == parameters, name
    for name, expected in fields.items():
        assert [field.name for field in dataclasses.fields(getattr(ours, name))] == expected, name
    for name, values in enums.items():
        assert {item.name: item.value for item in getattr(ours, name)} == values


def greets(word: str) -> None:
    import os

    print(word, os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["COLOUR"])


def fails() -> None:
    raise SystemExit(3)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ours.TrainerClient]:
    """Over jobs of this machine."""
    made = ours.TrainerClient(LocalBackend(tmp_path / "runs"))
    yield made
    made.close()


def test_a_trainer_trains(client: ours.TrainerClient) -> None:
    """Started, waited for, read by node, listed, deleted."""
    env = {"COLOUR": "red"}
    trainer = ours.CustomTrainer(greets, func_args={"word": "hello"}, num_nodes=2, env=env)
    name = client.train(runtime="torch-distributed", trainer=trainer)
    seen: list[str] = []
    watching = [lambda found: seen.append(found.status)]
    job = client.wait_for_job_status(name, timeout=100, polling_interval=0, callbacks=watching)
    assert (job.status, job.num_nodes, [step.name for step in job.steps]) == ("Complete", 2, ["node-0", "node-1"])
    assert seen[-1] == "Complete"
    assert list(client.get_job_logs(name, step="node-1")) == ["hello 1 of 2 red"]
    assert [found.name for found in client.list_jobs()] == [name]
    assert "Finished" in {event.reason for event in client.get_job_events(name)}
    client.delete_job(name)
    with pytest.raises(NotFound):
        client.get_job(name)


def test_a_rejected_job_has_failed(client: ours.TrainerClient, tmp_path: Path) -> None:
    """The API server took it, the operator does not: it is listed among the others, and waiting for it ends."""
    for name, data in (("runs", {}), ("refused", {"kind": "tensorflow", "dispatcherSide": "Training"})):
        made = job(name, **({"dataWorkers": data} if data else {}))
        made["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        made["status"] = {"state": "Rejected" if data else "Running"}
        directory = tmp_path / f"runs/{name}-20260101-010000"
        directory.mkdir(parents=True)
        write_job(directory, made)
    assert {(found.name, found.num_nodes) for found in client.list_jobs()} == {("runs", 2), ("refused", 2)}
    assert client.get_job("refused").status == "Failed"
    with pytest.raises(RuntimeError):
        client.wait_for_job_status("refused", timeout=100, polling_interval=0)


def test_a_job_that_is_deleted_meanwhile_is_not_listed(tmp_path: Path) -> None:
    """Jobs of the list are read one by one: a job that is deleted in the meantime does not affect the others."""

    class Backend(LocalBackend):
        async def select(self, *, everywhere: bool = False) -> list[dict[str, Any]]:
            gone = job("gone")
            gone["metadata"]["namespace"] = "default"
            return [gone, *await super().select(everywhere=everywhere)]

    made = job("stays")
    made["metadata"] |= {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    (tmp_path / "stays-20260101-010000").mkdir()
    write_job(tmp_path / "stays-20260101-010000", made)
    client = ours.TrainerClient(Backend(tmp_path))
    assert [found.name for found in client.list_jobs()] == ["stays"]
    client.close()


def test_a_failure_ends_the_wait(client: ours.TrainerClient) -> None:
    """The error contains the reason, and is raised before the timeout."""
    name = client.train(trainer=ours.CustomTrainer(fails))
    with pytest.raises(RuntimeError, match="rank 0 exited with 3"):
        client.wait_for_job_status(name, timeout=100, polling_interval=0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"runtime": "deepspeed-distributed"}, "runtime: is 'deepspeed-distributed'"),
        ({"initializer": object()}, "initializer: has no counterpart here; load data"),
        ({"trainer": ours.CustomTrainerContainer("image")}, "trainer: is CustomTrainerContainer"),
        (
            {"trainer": ours.CustomTrainer(fails, packages_to_install=["x"])},
            "packages_to_install: has no counterpart",
        ),
    ],
    ids=["runtime", "initializer", "container", "packages"],
)
def test_what_has_no_counterpart_is_refused(
    client: ours.TrainerClient, arguments: dict[str, Any], expected: str
) -> None:
    """The error names the argument, and nothing is started."""
    with pytest.raises(Invalid, match=re.escape(expected)):
        client.train(**{"trainer": ours.CustomTrainer(fails), **arguments})
    assert client.list_jobs() == []


def torchx(folder: Path, *words: str) -> str:
    """Return the output of a TorchX command."""
    done = completed(
        [sys.executable, "-m", "torchx.cli.main", *words], env=environment(), cwd=folder, timeout=patient(200)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_torchx_runs_an_app(tmp_path: Path) -> None:
    """dist.ddp on two workers of two ranks: torchrun is not started, its variables are there."""
    program = "import os, sys; print('hello', os.environ['RANK'], sys.argv[1:], flush=True)"
    (tmp_path / "hello.py").write_text(program)
    words = ("--wait", "--log", "dist.ddp", "-j", "2x2", "--image", "x", "--script", "hello.py", "--", "--fast")
    output = torchx(tmp_path, "run", "-s", "ringtrain", "-cfg", "local=true", *words)
    assert "Job finished: SUCCEEDED" in output
    lines = {line for line in output.splitlines() if re.match(r"hello/\d hello", line)}
    assert lines == {f"hello/{rank // 2} hello {rank} ['--fast']" for rank in range(4)}


def test_torchx_keeps_its_own_schedulers(tmp_path: Path) -> None:
    """A plugin takes their place, unless it names them again."""
    listed = "from torchx.schedulers import *; print(*get_scheduler_factories(), '|', *DEFAULT_SCHEDULER_MODULES)"
    found = completed([sys.executable, "-c", listed], env=environment(), check=True)
    registered, _, own = found.stdout.partition("|")
    assert set(own.split()) | {"ringtrain"} == set(registered.split())


def test_torchx_shows_what_it_would_create(tmp_path: Path) -> None:
    """The output is the manifest, with the app's resources."""
    asked = "-j 2x1 --image x:1 --gpu 1 --memMB 100 --max_retries 2 -m mod"
    words = ("dist.ddp", *asked.split())
    output = torchx(tmp_path, "run", "-s", "ringtrain", "--dryrun", *words)
    job, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])
    [container] = job["spec"]["worker"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-u", "-m", "mod"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "100M"}
    assert (job["spec"]["worker"]["devices"], job["spec"]["slotsPerWorker"]) == ({"nvidia.com/gpu": 1}, 1)
    assert job["spec"]["runPolicy"] == {"backoffLimit": 2}
