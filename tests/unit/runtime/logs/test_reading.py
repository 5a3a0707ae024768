"""Reading the log store's files: complete files are read in full, missing ones are reported."""

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.small_job import environment

from ringtrain_job.cli.main import main
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import LogMissing, find_log, follow_log, log_tail_position, read_log_from

ENV = environment(2, 2, 2)


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    """Attempt 2, in which ranks 0 and 3 have written."""
    made = AttemptFiles.of(tmp_path, "default", "digits", 2)
    made.directory.mkdir(parents=True)
    (made.directory.parent / "1").mkdir()
    made.rank_log(0).write_bytes(b"zero\n")
    made.rank_log(3).write_bytes(b"one\ntwo\nthree")
    made.job_log.write_bytes(b"[0] zero\n[3] one\n")
    return made


def test_a_missing_log_is_told_apart(files: AttemptFiles, tmp_path: Path) -> None:
    """An attempt that left nothing, and a rank that has written nothing, with what there is instead."""
    with pytest.raises(LogMissing, match="attempts with logs: 1, 2"):
        find_log(AttemptFiles.of(tmp_path, "default", "digits", 7), 0)
    with pytest.raises(LogMissing, match="a rank that has written something: 0, 3"):
        find_log(files, 1)


@pytest.mark.parametrize(
    ("content", "lines", "end"),
    [
        pytest.param(b"one\ntwo\nthree\n", 2, b"two\nthree\n", id="whole-lines"),
        pytest.param(b"one\ntwo\nthree", 2, b"two\nthree", id="unfinished-line"),
        pytest.param(b"one\n", 5, b"one\n", id="fewer-lines"),
        pytest.param(b"one\n", 0, b"", id="no-line"),
        pytest.param(b"", 3, b"", id="empty"),
        pytest.param(b"x" * (3 << 20) + b"\nlast\n", 1, b"last\n", id="a-line-longer-than-a-chunk"),
        pytest.param(b"x" * (3 << 20) + b"\nlast\n", 2, b"x" * (3 << 20) + b"\nlast\n", id="many-chunks"),
    ],
)
def test_the_tail_begins_where_its_lines_begin(tmp_path: Path, content: bytes, lines: int, end: bytes) -> None:
    """The position is that of the first of the last lines."""
    path = tmp_path / "log"
    path.write_bytes(content)
    assert b"".join(read_log_from(path, log_tail_position(path, lines))) == end


def test_a_rank_that_printed_nothing(files: AttemptFiles) -> None:
    """`ringtrain logs` says so of a rank of the run. Another number, and a log that was deleted, are errors."""
    files.outcome.write_text(json.dumps({"message": {"outcome": "Succeeded", "worldSize": 4}}))
    files.job_log.unlink()
    words = ["logs", str(files.directory), "--rank"]
    runner = CliRunner(env={"RINGTRAIN_JOB_NAME": None})
    silent, other, merged = (runner.invoke(main, one) for one in ([*words, "1"], [*words, "4"], words[:-1]))
    assert (silent.exit_code, silent.stdout, silent.stderr) == (0, "", "rank 1 has printed nothing\n")
    assert (other.exit_code, other.stderr) == (1, "Error: rank 4 does not exist; expected 0 to 3\n")
    outcome = {"outcome": "Succeeded", "worldSize": 4, "rankLogLines": [0, 7, 0, 0]}
    files.outcome.write_text(json.dumps({"message": outcome}))
    deleted = runner.invoke(main, [*words, "1"])
    assert (deleted.exit_code, "rank-0001.log is missing; the rank has printed 7 lines" in deleted.stderr) == (1, True)
    assert merged.stderr == f"Error: {files.job_log} is missing; --rank prints the output of one rank: 0, 3\n"


def test_a_growing_log_is_followed_to_its_end(tmp_path: Path) -> None:
    """Reading starts before the file exists, ends with the attempt, and omits nothing."""
    path, over = tmp_path / "log", threading.Event()
    chunks = follow_log(path, 0, over.is_set)
    path.write_bytes(b"one\n")
    assert next(chunks) == b"one\n"
    with path.open("ab") as file:
        file.write(b"two\n")
    over.set()
    assert b"".join(chunks) == b"two\n"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        pytest.param(["--rank=3"], 0, "one\ntwo\nthree", id="a-rank"),
        pytest.param([], 0, "[0] zero\n[3] one\n", id="all-ranks"),
        pytest.param(["--rank=3", "--tail=1"], 0, "three", id="tail"),
        pytest.param(["--rank=3", "--follow"], 0, "one\ntwo\nthree", id="followed-when-it-is-over"),
        pytest.param(["--rank=1"], 0, "", id="a-rank-that-has-written-nothing-yet"),
        pytest.param(["--rank=4"], 1, "Error: rank 4 does not exist; expected 0 to 3", id="no-such-rank"),
        pytest.param(["--attempt=7"], 1, "Error: ", id="no-such-attempt"),
    ],
)
def test_the_command_prints_it(
    files: AttemptFiles, tmp_path: Path, arguments: list[str], code: int, expected: str
) -> None:
    """`ringtrain logs` in the launcher's container, whose environment names job, attempt and store."""
    files.outcome.write_text("{}")
    done = CliRunner().invoke(main, ["logs", *arguments], env={**ENV, "RINGTRAIN_LOG_DIR": str(tmp_path)})
    assert done.exit_code == code
    assert done.output.startswith(expected)
    assert code or done.output == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("runs",), "[0] new\n"),
        ((), "[0] new\n"),
        (("runs/old-1",), "[0] old\n"),
        (("runs/local/new", "--rank", "0"), "new\n"),
        (("runs", "--tail", "0"), ""),
    ],
    ids=["newest", "by-default", "of-dtj-local", "one-rank", "tail"],
)
def test_the_newest_run_of_a_directory(
    words: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ringtrain logs DIRECTORY` finds it, however deep it lies, from `ringtrain run` and `dtj local` alike."""
    monkeypatch.chdir(tmp_path)
    for at, (folder, name) in enumerate([("runs/old-1/logs/default/old/1", b"old"), ("runs/local/new/1", b"new")]):
        files = AttemptFiles(tmp_path / folder)
        files.directory.mkdir(parents=True)
        files.job_log.write_bytes(b"[0] %s\n" % name)
        files.rank_log(0).write_bytes(b"%s\n" % name)
        files.events.write_text(json.dumps({"time": 1000.0 + at, "kind": "Launcher", "text": ""}) + "\n")
    result = CliRunner(env={"RINGTRAIN_JOB_NAME": None}).invoke(main, ["logs", *words])
    assert (result.exit_code, result.stdout) == (0, expected)
    result = CliRunner(env={"RINGTRAIN_JOB_NAME": None}).invoke(main, ["logs", "runs/old-1", "--rank", "4"])
    assert "rank-0004.log does not exist; expected a rank that has written something: 0" in result.stderr
    result = CliRunner(env={"RINGTRAIN_JOB_NAME": None}).invoke(main, ["logs", "runs", "--attempt", "4"])
    assert "has no attempt 4; its attempts are: 1" in result.stderr
