"""Small manifests in the shapes of public ones: what `dtj convert` makes of them, or why it refuses.

A case of corpus/*.yaml has `source`, and either `made` (values in the job's spec, by path; null: absent) or `refused`.
`notes` and `refused`: words on stderr; `absent`: words that are not there. `rewritten`: starts of values that the job
has in another form; every other value of the source is in the job or in a note.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.edits import edited, edits_of

from ringtrain_client.cli.main import main
from ringtrain_operator.build import build_worker_pod
from ringtrain_operator.spec.parse import parse_job

CASES = {
    f"{file.stem}: {case['case']}": case
    for file in sorted(Path(__file__).with_name("corpus").glob("*.yaml"))
    for case in yaml.safe_load_all(file.read_text())
}
# Fields that set numbers, names or an order of the original operator: the cases and other tests compare these.
TRANSLATED = {
    *("kind", "apiVersion", "name", "status", "restartPolicy", "completionMode", "mpiImplementation", "schedulerName"),
    *("replicas", "parallelism", "completions", "minAvailable", "slotsPerWorker", "numNodes", "numProcPerNode"),
    *("nprocPerNode", "nProcPerNode", "minReplicas", "maxReplicas", "maxRestarts", "maxRetry", "backoffLimit"),
}
SHORT = 3


def leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths, without numbers, and the texts of all values in a manifest that are set."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, *path, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, *path)
    elif value not in (None, ""):
        yield path, str(value)


def lost_values(source: Any, made: Any, notes: str) -> Iterator[str]:
    """Yield values of `source` that are neither in `made` nor named by notes. Short values need the same field."""
    text, fields = json.dumps(made), {(path[-1], value) for path, value in leaves(made)}
    for path, value in leaves(source):
        if path[-1] in TRANSLATED or (path[-1], value) in fields:
            continue
        names = (key for key in path[-3:] if len(key) > SHORT and key not in ("spec", "metadata", "value", "template"))
        is_long = len(value) > SHORT and (json.dumps(value)[1:-1] in text or value in notes)
        if not is_long and not any(name in notes for name in names):
            yield value


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path; None if it is absent."""
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else (value or {}).get(key)
    return value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_manifest(case: dict[str, Any], tmp_path: Path) -> None:
    """A converted job is valid and its worker's pod can be built; a refusal is one line."""
    nowhere = ["--kubeconfig", str(tmp_path / "none")]
    result = CliRunner().invoke(main, ["convert", "-", *nowhere], input=yaml.safe_dump_all(case["source"]))
    for words in case.get("notes", ()):
        assert words in result.stderr
    assert not [words for words in case.get("absent", ()) if words in result.stderr]
    if "refused" in case:
        assert result.exit_code == 1
        assert case["refused"] in result.stderr
        assert len([line for line in result.stderr.splitlines() if "Error" in line]) == 1
        return
    assert result.exit_code == 0, result.stderr
    made = list(yaml.safe_load_all(result.stdout))
    rewritten = case.get("rewritten", [])
    for value in lost_values(case["source"], made, result.stderr):
        assert any(value.startswith(start) for start in rewritten), value
    [job] = [one for one in made if one["kind"] == "DistributedTrainingJob"]
    build_worker_pod(parse_job(job), 1, 0)
    assert {path: value_at(job["spec"], path) for path in case["made"]} == case["made"]


def test_a_source_with_any_wrong_value_is_converted_or_refused(tmp_path: Path) -> None:
    """A refusal is lines, never a traceback."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for _ in range(150):
        source = chance.choice(list(CASES.values()))["source"]
        place, value = chance.choice(edits_of(source))
        text = json.dumps({"kind": "List", "apiVersion": "v1", "items": edited(source, place, value)})
        result = CliRunner().invoke(main, ["convert", "-", "--kubeconfig", str(tmp_path / "none")], input=text)
        about = f"seed {seed}: {place} is {value!r} in {source}"
        assert isinstance(result.exception, SystemExit | None), (about, result.exc_info)
