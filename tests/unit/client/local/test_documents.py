"""Reading and writing YAML, compared with kubectl (go-yaml) and a reader of YAML 1.2."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ringtrain_client.cli.main import main
from ringtrain_client.local.documents import read_documents, write_documents
from ringtrain_operator.errors import ManifestUnreadable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]
FEW = settings(
    max_examples=40, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Texts that have lost their quotes before, or that a reader takes for another type.
WORDS = (
    *(
        "2e-5",
        "1e3",
        "0o17",
        "+1e5",
        "0x1F",
        "0X1f",
        "1_000",
        "12e03",
        ".5",
        "1.",
        "010",
        "08",
        "0b11",
        "-0b1",
        "1e5_0",
    ),
    *(
        "y",
        "N",
        "yes",
        "Off",
        "true",
        "null",
        "~",
        "",
        "=",
        "<<",
        ".inf",
        "-.INF",
        ".nan",
        "2001-01-01",
        "1:30",
        "12:30:45",
    ),
    *(
        "- a",
        "a: b",
        "a #b",
        "@a",
        "%a",
        "!a",
        "&a",
        "*a",
        "|",
        ">",
        "{a",
        "[a",
        " a",
        "a ",
        "a\n",
        "\na",
        "a\n b\n",
        "\t",
    ),
    *("\x85", "\u2028", "\U0001f600", "\x1b", "'", '"', "\\", "---", "...", "? a", "a" * 200, "a b " * 50),
)
NUMBERS = st.from_regex(r"[-+]?[0-9._]{0,4}[xXoObBeE]?[-+]?[0-9a-f_.:]{0,5}", fullmatch=True)
TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
TEXTS = st.sampled_from(WORDS) | NUMBERS | st.text(TEXT) | st.text("ab \n\t:#-'\"\\{}[],&*!|>%@`?0.e")
NUMBER = st.integers(-(2**53), 2**53) | st.floats(-1e15, 1e15)
VALUES = st.lists(TEXTS | NUMBER | st.booleans() | st.none() | st.dictionaries(TEXTS, TEXTS), max_size=20)


def read_by_kubectl(path: Path, text: str) -> Any:
    """Return the `spec` that kubectl reads; None if it refuses."""
    path.write_text(text)
    command = ["kubectl", "annotate", "--local", f"--filename={path}", "a=b", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["spec"] if done.returncode == 0 else None


def document(values: Any) -> dict[str, Any]:
    """Return an object with the values."""
    return {"apiVersion": "ringtrain.dev/v1alpha1", "kind": "Any", "metadata": {"name": "a"}, "spec": values}


@FEW
@given(VALUES)
def test_what_is_printed_is_read_as_it_was(tmp_path: Path, values: list[Any]) -> None:
    """Printed values are read as the same by the loader, PyYAML, YAML 1.2 and kubectl."""
    text = write_documents([document({"v": values})])
    (tmp_path / "printed.yaml").write_text(text)
    assert read_documents(tmp_path / "printed.yaml") == [document({"v": values})]
    assert yaml.safe_load(text)["spec"] == {"v": values}
    assert YAML(typ="safe", pure=True).load(text)["spec"] == {"v": values}
    assert read_by_kubectl(tmp_path / "m.yaml", text) == {"v": values}


@FEW
@given(st.lists(NUMBERS | st.sampled_from([word for word in WORDS if word.isalnum()]), min_size=1, max_size=30))
def test_a_plain_word_is_read_as_by_kubectl(tmp_path: Path, words: list[str]) -> None:
    """A number is read as by kubectl, unless the loader refuses a value that JSON does not have."""
    path = tmp_path / "m.yaml"
    read = {}
    for number, word in enumerate(words):
        path.write_text(f"v: {word}\n")
        try:
            read[f"v{number}"] = (word, read_documents(path)[0]["v"])
        except ManifestUnreadable:
            continue
    lines = [f"  {name}: {word}" for name, (word, _) in read.items()]
    text = "\n".join([yaml.safe_dump(document({})).replace("spec: {}", "spec:"), *(lines or ["  a: a"])])
    found = read_by_kubectl(path, text)
    assert {name: (found or {}).get(name) for name in read} == {name: value for name, (_, value) in read.items()}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a:\n\tb: 1\n", "line 2, column 1: not YAML: the line has a tab; YAML is indented with spaces"),
        (b"a: b: c\n", "line 1, column 5: not YAML: found 'a: b: c'; check indentation, quotes and colons here"),
        (b"a: [\n", "line 2, column 1: not YAML: the file ends before a quote or bracket is closed"),
        (b"a: 'b\n", "line 2, column 1: not YAML: the file ends before a quote or bracket is closed"),
        (b"a: 1\n  b: 2\n", "line 2, column 4: not YAML: found 'b: 2'"),
        (b"a: *b\n", "line 1, column 4: not YAML: *b is not defined; put the value in quotes if it begins with *"),
        (b"b: 1\na: \xff\n", "line 2: not YAML: it has bytes that are not text in UTF-8"),
        (b"b: 1\na: \x01\n", "line 2: not YAML: it has the control character '\\x01'"),
    ],
)
def test_what_is_not_yaml_is_one_line_with_its_place(tmp_path: Path, content: bytes, says: str) -> None:
    """The message has none of the YAML reader's own words, and is one line."""
    path = tmp_path / "m.yaml"
    path.write_bytes(content)
    with pytest.raises(ManifestUnreadable) as caught:
        read_documents(path)
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)


JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: quoted}
spec:
  pytorchReplicaSpecs:
    Worker:
      template: {spec: {containers: [{name: pytorch, image: i, command: [python, train.py, WORDS]}]}}
"""


def test_convert_and_render_keep_words(tmp_path: Path) -> None:
    """`dtj convert` and `dtj render` use the same dumper, which changes no text."""
    words = [word for word in WORDS if word.strip()]
    (tmp_path / "job.yaml").write_text(
        JOB.replace("WORDS", ", ".join(json.dumps(word, ensure_ascii=False) for word in words))
    )
    converted = CliRunner().invoke(main, ["convert", str(tmp_path / "job.yaml"), "--to", str(tmp_path / "ours.yaml")])
    assert converted.exit_code == 0, converted.output
    rendered = CliRunner().invoke(main, ["render", str(tmp_path / "ours.yaml")])
    ours = read_by_kubectl(tmp_path / "m.yaml", (tmp_path / "ours.yaml").read_text())
    worker = read_by_kubectl(tmp_path / "m.yaml", rendered.stdout.split("\n---\n")[-1])
    assert ours["worker"]["template"]["spec"]["containers"][0]["command"][-len(words) :] == words
    assert worker["containers"][0]["command"][-len(words) :] == words
