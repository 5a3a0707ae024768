"""Any manifest, valid or not: every command that reads it ends with a result or an error message, never a traceback."""

import copy
import functools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.documents import documents
from support.jobs import job

from ringtrain_client.cli.main import main
from ringtrain_client.cli.render import rendered
from ringtrain_client.local.manifest import load_job
from ringtrain_client.local.places import LocalPlaces
from ringtrain_client.local.sandbox import command_of
from ringtrain_operator.errors import Invalid, LocalUnsupported, OperatorError, shown
from ringtrain_operator.spec.parse import parse_job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
CORPUS = sorted((ROOT / "tests/corpus").glob("*/*.yaml"))
GOOD = [
    document
    for path in [*sorted((ROOT / "manifests/samples").glob("*.yaml")), *CORPUS]
    if path.parent.name == "samples" or path.stem.startswith("good-")
    for document in documents(path)
]
SAMPLES = [document for document in GOOD if document["kind"] == "DistributedTrainingJob"]
MPIJOBS = [document for document in GOOD if document["kind"] == "MPIJob"]
JOB_FIELDS = (
    *("namespace", "generation", "creationTimestamp", "labels", "annotations", "uid", "deletionTimestamp"),
    *("env", "volumeMounts", "volumes", "resources", "subPath", "hostPath", "secret", "persistentVolumeClaim"),
    *("initContainers", "securityContext", "valueFrom", "emptyDir", "workingDir", "terminationMessagePath"),
    *("logs", "checkpoint", "runPolicy", "failureRules", "networking", "devices", "terminationGracePeriodSeconds"),
)
MPIJOB_FIELDS = (
    *("namespace", "labels", "slotsPerWorker", "runPolicy", "mainContainer", "cleanPodPolicy", "restartPolicy"),
    *("mpiImplementation", "runLauncherAsWorker", "args", "command", "resources", "limits", "replicas"),
)
# The same cases in each run, as many as fit into a few seconds. Raise max_examples to search for more.
FEW = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


# Values that people and programs write into a field by mistake, and those of attackers.
STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**18,
    "",
    "x",
    "3",
    "²",
    "../../x",
    "/",
    "ü" * 300,
    "2024-13-45",
    [],
    [None],
    [[]],
    ["a", 1],
    {},
    {"a": None},
    {"a": {"b": "c"}},
    {"name": 5},
    [{"name": "a"}, {"name": "a"}],
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in `value`, where other values can be inserted."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inner for path in [(*at, key), *paths(item, (*at, key))]]


@st.composite
def mutants(draw: st.DrawFn, good: list[Any], fields: tuple[str, ...] = ()) -> Any:
    """Return one of `good` with one to three changes: a value replaced or removed, or one of `fields` added."""
    made = copy.deepcopy(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths(made) or [()]))
        if not path:
            break
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        kind = draw(st.sampled_from(("replace", "remove", "add")))
        if kind == "replace":
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        elif kind == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from((*fields, "extra")))] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        else:
            parent.append(copy.deepcopy(draw(st.sampled_from(STRANGE))))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory two levels inside another one, which must not change except in this directory."""
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    yield inside
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def told(*words: str) -> Result:
    """Run `dtj WORDS` and assert that it ends without a traceback, and with an error message if it failed."""
    result = CliRunner().invoke(main, list(words))
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code in (0, 1)
    assert result.exit_code == 0 or result.stderr
    assert len(result.stderr) < 20_000
    return result


def check_all(path: Path, folder: Path) -> None:
    """Run every command that reads a manifest, without starting the processes of `dtj local`."""
    for command in ("validate", "render", "convert"):
        told(command, str(path))
    try:
        job = parse_job(load_job(path))
    except OperatorError:
        return
    places = LocalPlaces(folder / "run", folder / "claims")
    for index, pod in enumerate(obj for obj in rendered(job) if obj["kind"] == "Pod"):
        pod_dir = folder / "scratch" / str(index)
        pod_dir.mkdir(parents=True, exist_ok=True)
        secrets = {("Secret", f"{job.name}-secret"): {}}
        with suppress(LocalUnsupported):
            assert not any("\0" in word for word in command_of(pod, places, pod_dir, secrets).argv)


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_cases_that_were_found(path: Path, folder: Path) -> None:
    """Files that once caused a traceback, and the samples of the mutations, end without one."""
    check_all(path, folder)


@FEW
@given(job=mutants(SAMPLES, JOB_FIELDS))
def test_mutated_jobs(job: Any, folder: Path) -> None:
    """A sample with fields replaced, removed or added ends without a traceback."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, allow_unicode=True))
    check_all(path, folder)


@FEW
@given(job=mutants(MPIJOBS, MPIJOB_FIELDS))
def test_mutated_mpijobs(job: Any, folder: Path) -> None:
    """An MPIJob with fields replaced, removed or added ends without a traceback."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, allow_unicode=True))
    told("convert", str(path))


SETTINGS = {"apiVersion": "v1", "metadata": {"name": "settings"}, "data": {"EPOCHS": "NQ=="}}
PART = {"apiVersion": "ringtrain.dev/v1alpha1", "metadata": {"name": "part"}, "spec": {"description": "", "job": {}}}
BESIDE = {
    "ConfigMap": SETTINGS,
    "Secret": SETTINGS,
    "TrainingTemplate": PART,
    "ClusterTrainingTemplate": PART,
    "PersistentVolumeClaim": {**PART, "apiVersion": "v1", "data": {}},
}


@pytest.mark.parametrize("kind", BESIDE)
def test_documents_beside_a_job(kind: str, folder: Path) -> None:
    """A field of a wrong type is refused by its name, with the same lines by validate, render and local; a kind that
    nothing reads is ignored."""
    made, file = job(), folder / "job.yaml"
    references = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "settings", "optional": True}}]
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["envFrom"] = references
    for path in paths(BESIDE[kind]):
        for value in (7, "x", [], ["a"], {}):
            document = copy.deepcopy({"kind": kind, **BESIDE[kind]})
            parent = functools.reduce(lambda inner, key: inner[key], path[:-1], document)
            if path == ("apiVersion",) or type(parent[path[-1]]) is type(value):
                continue
            parent[path[-1]] = value
            file.write_text(yaml.safe_dump_all([made, document]))
            lines = [told(command, str(file)).stderr.splitlines() for command in ("validate", "render")]
            found = [[line.split(f"{file}: ")[-1].strip() for line in some] for some in lines]
            problems: list[str] = []
            try:
                load_job(file)
            except Invalid as exc:
                problems = [str(problem) for problem in exc.problems]
            assert found == [problems, problems], (path, value)
            fields = [problem.split(": ")[1] for problem in problems]
            assert len(fields) == len(set(fields)), (problems, "one line for a field")
            if kind != "PersistentVolumeClaim":
                assert any(field.startswith(".".join(path)) for field in fields), (path, value, problems)
            if path == ("metadata",):
                assert isinstance(value, dict) or problems == [
                    f"{kind}: metadata: is {shown(value)}; expected a mapping"
                ]


WORDS = (
    *("a", ": ", "- ", "\n", "  ", "&x ", "*x", "<<: ", "[", "]", "{", "}", "? ", "=", "~", "'", '"', "|\n", "\t"),
    *("!!int ", "!!float ", "!!bool ", "!!map ", "!!set ", "!!binary ", "!!str ", "!x ", "---\n", "%YAML 9.9\n"),
    *("2024-13-45", "9" * 5000, "0x", ".nan", "1e999", '"\\0"', "\0", '"\\ud800"', "\ufeff", "1:30"),
    "kind: DistributedTrainingJob\n",
)


@FEW
@given(content=st.lists(st.sampled_from(WORDS), max_size=30).map("".join).map(str.encode) | st.binary(max_size=200))
def test_text_that_is_hardly_yaml(content: bytes, folder: Path) -> None:
    """Any sequence of YAML tokens, and any bytes, end without a traceback."""
    path = folder / "job.yaml"
    path.write_bytes(content)
    check_all(path, folder)
