"""Manifests as clouds, vendors and HPC groups have them: converted, validated and run, or refused with words.

tests/corpus/strangers has them, each with an Expectation in front. The programs of their images are stand-ins
here, which write down what they were given; that is held against the tables of support.source_rules.
"""

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mpi_libraries import INTEL_MPI, MPICH, OPEN_MPI
from support.commands import completed
from support.documents import documents
from support.source_rules import HOSTFILE, TORCHRUN, TRAINER, TRAINING_OPERATOR

from ringtrain_client.cli.main import main

ROOT = Path(__file__).parents[3]
STANDIN = """#!{python}
import json, os, sys
world = rank = None
if "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
    from mpi4py import MPI
    rank, world = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
found = {{"rank": rank, "world": world, "uid": os.getuid(), "env": dict(os.environ), "words": sys.argv}}
path = f"{seen}/{{os.getpid()}}"
with open(path, "w") as file:
    json.dump(found, file)
os.rename(path, path + ".json")
"""
FILES = sorted((ROOT / "tests/corpus/strangers").glob("*.yaml"))
KINDS = ("MPIJob", "TrainJob", "PyTorchJob", "TFJob", "JAXJob", "XGBoostJob")
ROLES = {"PyTorchJob": "pytorch", "TFJob": "tf", "JAXJob": "jax", "XGBoostJob": "xgb"}


@dataclass(frozen=True)
class Case:
    """A job, what stands beside it in its file, and what is expected.

    Of `expected`: `refused`, words of convert's refusal; `notes`, words of its notes; `not_run`, why the job is
    only converted and validated; `per_node`, ranks on each node (1); `programs` of its image that its command
    starts (train.py); `env`, variables that its ranks see; `rules`, values beside those of the source's table;
    `devices` of a node that XGBoost counts; `evaluator` and `others`, how many processes are no ranks;
    `shows_hostfile`, whether the launcher prints its hostfile.
    """

    name: str
    expected: dict[str, Any]
    job: dict[str, Any]
    beside: list[dict[str, Any]]

    @property
    def kind(self) -> str:
        return str(self.job["kind"])

    @property
    def family(self) -> str:
        """Those of which a sample runs one."""
        return self.kind if self.kind in ("MPIJob", "TrainJob", "PyTorchJob") else "others"

    @property
    def runs(self) -> bool:
        return not {"refused", "not_run"} & set(self.expected)

    @property
    def runtime(self) -> dict[str, Any]:
        """That of a TrainJob."""
        name = self.job["spec"]["runtimeRef"]["name"]
        return next(one for one in self.beside if one["metadata"]["name"] == name and "Runtime" in one["kind"])


def read_cases() -> Iterator[Case]:
    """Those of all files; what stands before a file's first Expectation is beside each of its jobs."""
    for path in FILES:
        groups: list[list[dict[str, Any]]] = [[]]
        for document in documents(path):
            if document["kind"] == "Expectation":
                groups.append([])
            groups[-1].append(document)
        for expected, *objects in groups[1:]:
            [job] = [one for one in objects if one["kind"] in KINDS]
            beside = groups[0] + [one for one in objects if one is not job]
            yield Case(expected["name"], expected, job, beside)


CASES = {case.name: case for case in read_cases()}
RUNNING = [(case.family, case.name) for case in CASES.values() if case.runs]


def test_the_corpus_is_one() -> None:
    """Sixty jobs and more, of all kinds; each may be told by its name."""
    assert len(CASES) == len(list(read_cases())) >= 60
    assert {case.kind for case in CASES.values()} == set(KINDS)


def converted(case: Case, folder: Path) -> tuple[dict[str, Any], str]:
    """The job that `dtj convert` makes, which `dtj validate` finds valid, and its notes."""
    source, made = folder / "source.yaml", folder / "job.yaml"
    source.write_text(yaml.safe_dump_all([*case.beside, case.job]))
    done = CliRunner().invoke(main, ["convert", str(source), "--to", str(made)])
    assert done.exit_code == 0, done.output
    valid = CliRunner().invoke(main, ["validate", str(made)])
    assert valid.exit_code == 0, valid.output
    [job] = [one for one in documents(made) if one["kind"] == "DistributedTrainingJob"]
    return job, done.stderr


def source_templates(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod templates of the source, each with our role."""
    if case.kind == "MPIJob":
        for role, replica in case.job["spec"]["mpiReplicaSpecs"].items():
            yield role.lower(), replica["template"]
    elif case.kind == "TrainJob":
        for one in case.runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            if one["name"] in ("node", "launcher"):
                yield one["name"].replace("node", "worker"), one["template"]["spec"]["template"]
    else:
        for role, replica in case.job["spec"][f"{ROLES[case.kind]}ReplicaSpecs"].items():
            if replica.get("replicas", 1):
                yield "evaluator" if role == "Evaluator" else "worker", replica["template"]


def nodes_of(case: Case) -> int:
    """Return the number of pods that run ranks, by the source's rules."""
    spec = case.job["spec"]
    if case.kind == "MPIJob":
        return int(spec["mpiReplicaSpecs"]["Worker"].get("replicas", 1)) + bool(spec.get("runLauncherAsWorker"))
    if case.kind == "TrainJob":
        policy = case.runtime["spec"].get("mlPolicy") or {}
        return int((spec.get("trainer") or {}).get("numNodes") or policy.get("numNodes") or 1)
    replicas = spec[f"{ROLES[case.kind]}ReplicaSpecs"]
    return sum(int(one.get("replicas", 1)) for role, one in replicas.items() if role != "Evaluator")


@pytest.mark.parametrize("name", CASES)
def test_it_is_converted_or_refused(name: str, tmp_path: Path) -> None:
    """Fields that are left out are in the notes, and the pods retain the other fields of their templates."""
    case = CASES[name]
    if words := case.expected.get("refused"):
        source = tmp_path / "source.yaml"
        source.write_text(yaml.safe_dump_all([*case.beside, case.job]))
        done = CliRunner().invoke(main, ["convert", str(source)])
        assert (done.exit_code, words in " ".join(done.output.split())) == (1, True), done.output
        return
    made, notes = converted(case, tmp_path)
    for words in case.expected.get("notes", []):
        assert words in notes, notes
    spec, ranks = made["spec"], nodes_of(case) * case.expected.get("per_node", 1)
    pods = spec["worker"]["replicas"] + bool((spec.get("mpi") or {}).get("runLauncherAsWorker"))
    assert pods * spec.get("slotsPerWorker", max((spec["worker"].get("devices") or {"": 1}).values())) == ranks
    for role, template in source_templates(case):
        kept = spec[role]["template"]["spec"]
        for field in set(template["spec"]) - {"containers", "restartPolicy"}:
            assert kept.get(field) == template["spec"][field]
        theirs = {one.get("name"): one for one in template["spec"]["containers"]}
        for container in kept["containers"]:
            for field in ("securityContext", "volumeMounts", "envFrom", "lifecycle", "workingDir"):
                assert container.get(field) == theirs[container.get("name")].get(field)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_one_that_is_refused_stops_no_other(path: Path) -> None:
    """All jobs of a file but those are written, and each of them is named."""
    done = CliRunner().invoke(main, ["convert", str(path)])
    expected = [one for one in documents(path) if one["kind"] == "Expectation"]
    refused = [one["name"] for one in expected if "refused" in one]
    assert done.exit_code == bool(refused)
    made = [one for one in documents(done.stdout) if one["kind"] == "DistributedTrainingJob"]
    assert len(made) == len(expected) - len(refused)
    assert all(f"{path}: {name}: " in done.stderr for name in refused)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for the Unix sockets that MPI makes in it."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        for name in ("bin", "image", "seen", "tmp"):
            (Path(directory) / name).mkdir()
        yield Path(directory)


def with_standins(case: Case, made: dict[str, Any], place: Path) -> None:
    """Put a stand-in where each program of the image is looked for: its path, in PATH, or below the directory."""
    standin = place / "standin"
    standin.write_text(STANDIN.format(python=sys.executable, seen=place / "seen"))
    standin.chmod(0o755)
    for program in case.expected.get("programs", ["train.py"]):
        own = place / ("image" + program if program.startswith("/") else program)
        path = own if "/" in program or program.endswith(".py") else place / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(standin)
        if program.startswith("/"):
            for role in ("worker", "launcher", "evaluator"):
                pod = (made["spec"].get(role) or {}).get("template", {}).get("spec") or {"containers": [{}]}
                for field in {"command", "args"} & set(pod["containers"][0]):
                    words = pod["containers"][0][field]
                    pod["containers"][0][field] = [word.replace(program, str(own)) for word in words]


def run_local(case: Case, place: Path) -> tuple[list[dict[str, Any]], str]:
    """Run the converted job; what its processes were given, and what its launcher wrote."""
    made, _ = converted(case, place)
    with_standins(case, made, place)
    made["spec"]["runPolicy"] |= {"suspend": False, "backoffLimit": 0}
    manifest = place / "run.yaml"
    manifest.write_text(yaml.safe_dump_all([*case.beside, made]))
    libraries = {one.implementation: one for one in (MPICH, OPEN_MPI, INTEL_MPI)}
    library = libraries.get((made["spec"].get("mpi") or {}).get("implementation", ""))
    given = {**os.environ, **(library.need_mpi4py(place) if library else {})}
    environment = {
        **given,
        # Ranks that poll would keep a machine with fewer cores than ranks from making progress.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "TMPDIR": str(place / "tmp"),
        "PATH": f"{place}/bin{os.pathsep}{given['PATH']}",
    }
    command = [str(Path(sys.executable).with_name("dtj")), "local", str(manifest)]
    done = completed(command, cwd=place, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = "".join(log.read_text() for log in place.glob("runs/*/pods/*launcher*.log"))
    return [json.loads(path.read_text()) for path in (place / "seen").glob("*.json")], logs


def world_of(case: Case) -> set[str]:
    """By what the source makes a world."""
    if case.kind == "MPIJob":
        return {"mpi"}
    policy = (case.runtime["spec"].get("mlPolicy") or {}) if case.kind == "TrainJob" else {}
    return {"mpi" if name == "flux" else name for name in policy}


def rules_of(case: Case) -> dict[str, str]:
    """Return the variables that the source's operator sets for each process."""
    if case.expected.get("per_node", 1) > 1 or "torchrun is left out" in case.expected.get("notes", ()):
        return TORCHRUN
    tables = (TRAINER[name] for name in world_of(case) if name in TRAINER)
    table = next(tables, TRAINING_OPERATOR.get(case.kind, {}))
    return {**table, **case.expected.get("rules", {})}


@pytest.mark.parametrize(("family", "name"), RUNNING)
def test_it_runs_as_there(family: str, name: str, place: Path) -> None:
    """As many processes on as many nodes, each with the source's variables and the user's, as this user."""
    case = CASES[name]
    given, log = run_local(case, place)
    ranks = [one for one in given if one["env"].get("RINGTRAIN_ROLE") != "evaluator" and "RANK" in one["env"]]
    assert len(given) == len(ranks) + sum(case.expected.get(one, 0) for one in ("evaluator", "others"))
    expected = nodes_of(case) * case.expected.get("per_node", 1)
    assert sorted(int(one["env"]["RANK"]) for one in ranks) == list(range(expected))
    assert {one["uid"] for one in given} == {os.getuid()}
    for one in ranks:
        check_variables(case, one, ranks)
        for variable, value in case.expected.get("env", {}).items():
            assert one["env"].get(variable) == value
    if "mpi" in world_of(case):
        check_mpi(case, ranks, log)


def check_variables(case: Case, one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """One process has what the source's table says."""
    if "mpi" in world_of(case):
        return
    rank, per_node = int(one["env"]["RANK"]), case.expected.get("per_node", 1)
    numbers = {
        "rank": rank,
        "ranks": len(ranks),
        "nodes": nodes_of(case),
        "node": rank // per_node,
        "local": rank % per_node,
        "per_node": per_node,
        "workers": len(ranks) * case.expected.get("devices", 1),
    }
    if case.kind == "TFJob":  # its controller.v1/tensorflow/tensorflow.go; a chief is worker 0 here
        config = json.loads(one["env"]["TF_CONFIG"])
        assert (len(config["cluster"]["worker"]), config["task"]["index"]) == (len(ranks), rank)
    head = {variable: ranks[0]["env"][variable] for variable in ("MASTER_ADDR", "MASTER_PORT")}
    for variable, value in rules_of(case).items():
        expected = value.replace("head", head["MASTER_ADDR"]).replace("29400", head["MASTER_PORT"])
        assert one["env"].get(variable) == expected.format(**numbers), variable


def check_mpi(case: Case, ranks: list[dict[str, Any]], log: str) -> None:
    """One world of MPI, as many ranks on each node as it has slots; a hostfile that is shown has each worker."""
    per_node = case.expected.get("per_node", 1)
    assert sorted(one["rank"] for one in ranks) == list(range(len(ranks)))
    assert {one["world"] for one in ranks} == {len(ranks)}
    assert set(Counter(one["env"]["GROUP_RANK"] for one in ranks).values()) == {per_node}
    if case.expected.get("shows_hostfile"):
        line = HOSTFILE[case.job["spec"].get("mpiImplementation", "OpenMPI")].format(slots=per_node)
        assert len(re.findall(rf"^{line}$", log, re.MULTILINE)) == nodes_of(case), log
