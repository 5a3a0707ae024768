"""Small manifests in the shapes of public ones: what `dtj convert` makes of them, or why it refuses.

A case of corpus/*.yaml has `source`, and either `made` (values in the job's spec, by path; null: absent) or `refused`.
`notes` and `refused`: words on stderr; `absent`: words that are not there.
"""

import json
import random
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
    [job] = [one for one in yaml.safe_load_all(result.stdout) if one["kind"] == "DistributedTrainingJob"]
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
