"""Options of `ringtrain run`, and its usage errors."""

import io
import logging
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ringtrain_job.cli.elastic import ElasticCommandOptions, elastic_run
from ringtrain_job.cli.main import log_to_stderr, main
from ringtrain_job.cli.run import run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "0", "true"], "0 is not in the range"),
        (["true"], "Missing option '-np'"),
        (["-np", "1"], "Missing argument"),
        (["--glue", "-np", "1", "true"], "No such option '--glue'"),
        (["-np", "1", "-x", "A=1", "true"], "No such option '-x'"),
        (["-np", "1", "--name", "../../escape", "true"], "--name '../../escape': expected letters"),
        (["-np", "1", "--name", "", "true"], "--name '': expected letters"),
        (["-np", "1", "--name", "..", "true"], "--name '..': expected letters"),
        (["-np", "1", "--name", "a\nb", "true"], "expected letters"),
    ],
    ids=[
        *("no-rank", "no-np", "no-command", "unknown-option"),
        *("unknown-short-option", "name-leaves-its-folder", "no-name", "dots", "newline"),
    ],
)
def test_usage_errors(words: list[str], message: str) -> None:
    """Nothing is started, and the message says what to do instead."""
    result = CliRunner().invoke(main, ["run", *words])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--nproc-per-node", "2", "train.py"], "--nproc-per-node is torchrun's; write: ringtrain run -np N python"),
        (["--nproc_per_node=2", "train.py"], "--nproc_per_node is torchrun's; write: ringtrain run -np N python"),
        (["--standalone", "-np", "2", "train.py"], "--standalone is torchrun's; remove it"),
        (
            ["-np", "2", "-m", "package.train"],
            "-m is torchrun's; write the whole command: ringtrain run -np N",
        ),
    ],
)
def test_words_of_torchrun_get_a_hint(words: list[str], hint: str) -> None:
    """The line says which option to use here."""
    result = CliRunner().invoke(main, ["run", *words])
    assert (result.exit_code, hint in result.output) == (2, True), result.output


TORCHRUN = (
    "-m -r -t --module --nnodes --nproc-per-node --node-rank --local-addr --standalone --rdzv-backend --rdzv-endpoint "
    "--rdzv-id --rdzv-conf --master-addr --master-port --max-restarts --monitor-interval --start-method --role "
    "--no-python --run-path --redirects --tee --logs-specs --local-ranks-filter"
)


@pytest.mark.parametrize("option", TORCHRUN.split())
def test_every_option_of_torchrun_has_a_hint(option: str) -> None:
    """Also in snake case. `--log-dir` is accepted, as the earlier name of `--runs`."""
    for spelt in {option, option[:2] + option[2:].replace("-", "_")}:
        result = CliRunner().invoke(main, ["run", "-np", "1", spelt, "2", "true"])
        (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
        assert line.startswith(f"Error: {spelt} is torchrun's; ")


def test_help_of_run_is_in_groups() -> None:
    """Common options come first, every option once; no line is wider than a terminal."""
    output = CliRunner().invoke(main, ["run", "--help"], terminal_width=80).output
    titles = [line for line in output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[:2] == ["Common options:", "Elastic runs:"]
    first = output.partition("Common options:")[2].partition("Elastic runs:")[0]
    assert first.index("--num-proc") < first.index("--runs") < first.index("--quiet") < first.index("--help")
    for option in run.params:
        if isinstance(option, click.Option) and not option.hidden:
            longest = max(option.opts, key=len)
            shown = re.findall(rf"(?m)^  (?:.*, )?{longest}(?![\w-])", output)
            assert len(shown) == 1, longest
    assert max(map(len, output.splitlines())) <= 80


def test_an_earlier_name_of_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--log-dir is --runs, and not in the help."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["run", "-np", "1", "--log-dir", "file/runs", "true"])
    assert "--runs file/runs: cannot write logs to this folder" in result.output
    assert "--log-dir" not in CliRunner().invoke(main, ["run", "--help"]).output


@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("pythn", 127, "cannot execute pythn: PATH has no program of this name; did you mean python?"),
        ("./nothing.py", 127, "cannot execute ./nothing.py: the file does not exist"),
        ("./notes.py", 126, "not executable (chmod +x)"),
        ("notes.py", 127, "did you mean ./notes.py, or python notes.py?"),
    ],
    ids=["mistyped", "no-file", "not-executable", "not-in-path"],
)
def test_a_command_that_cannot_be_executed(
    program: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started; the status is a shell's, and the message says why."""
    (tmp_path / "notes.py").write_text("")
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["run", "-np", "1", program, "--epochs", "1"])
    assert result.exit_code == code
    assert message in result.output
    assert not (tmp_path / "runs").exists()


def test_help_names_commands_for_people() -> None:
    """`ringtrain -h` lists them; what containers run is there, and not listed. A mistyped one gets a hint."""
    result = CliRunner().invoke(main, ["-h"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    people = [
        "bench",
        "completion",
        "logs",
        "run",
        "timeline",
    ]
    assert set(people) <= set(listed)  # plugins add theirs
    assert "agent" not in listed
    assert CliRunner().invoke(main, ["agent", "--help"]).exit_code == 0
    for word in ("rum", "torchrun"):
        assert "Did you mean 'run'?" in CliRunner().invoke(main, [word]).output


def test_numbers_of_progress_are_explained() -> None:
    """The help of `ringtrain run` explains the figures of speed in a progress line."""
    shown = " ".join(CliRunner().invoke(main, ["run", "--help"]).output.split())
    assert "its standard error (+/-)" in shown
    assert "the scatter of the speeds of single steps around their median (jitter)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-np", "2", "--min-np", "3"],
            "-np 2, the number of ranks at the start, is not between --min-np 3 and --max-np 2",
        ),
        (["-np", "2", "--max-np", "1"], "is not between --min-np 2 and --max-np 1"),
        (["-np", "4", "--min-np", "3", "--max-np", "2"], "is not between --min-np 3 and --max-np 2"),
        (["-np", "4", "--on-loss", "shrink"], "--on-loss Shrink: with -np 4 and --min-np 4 no rank may be lost"),
        (
            ["-np", "4", "--min-np", "2", "--on-loss", "Shrink", "--replace-timeout", "5"],
            "--replace-timeout and --on-loss Shrink: with Shrink, ranks do not wait for a replacement",
        ),
        (["-np", "2", "--on-loss", "Panic"], "'Panic' is not one of"),
        (["-np", "2", "--replace-timeout", "0"], "0.0 is not in the range"),
        (["-np", "2", "--reset-limit", "-1"], "-1 is not in the range"),
    ],
    ids=[
        *(
            "below-min",
            "above-max",
            "min-above-max",
            "shrink-without-room",
            "shrink-does-not-wait",
            "no-such-word",
        ),
        *("no-time", "negative-limit"),
    ],
)
def test_usage_errors_of_elastic_runs(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Combinations that cannot be are refused before anything is started, with both values."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", *words, "true"])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "slots", "expected"),
    [
        (ElasticCommandOptions(min_ranks=2), 4, {"": "Replace", "_MIN_RANKS": "2", "_MAX_RANKS": "4"}),
        (ElasticCommandOptions(max_ranks=8), 8, {"": "Replace", "_MIN_RANKS": "4", "_MAX_RANKS": "8"}),
        (
            ElasticCommandOptions(on_loss="Restart", replace_timeout_s=7.5, resets=0),
            4,
            {
                "": "Restart",
                "_MIN_RANKS": "4",
                "_MAX_RANKS": "4",
                "_REPLACE_TIMEOUT": "7.5",
                "_FORMATION_LIMIT": "1",
            },
        ),
    ],
    ids=["min", "max", "any-option"],
)
def test_what_an_elastic_run_is_told(options: ElasticCommandOptions, slots: int, expected: dict[str, str]) -> None:
    """-np is where it begins, and the bound that is not given; there are as many slots as ranks at most."""
    made = elastic_run(4, options)
    always = {"_START_RANKS": "4", "_JOIN_DELAY": "2"}
    assert made.slots == slots
    assert made.variables == {f"RINGTRAIN_ELASTIC{name}": value for name, value in {**expected, **always}.items()}


@pytest.mark.parametrize(("terminal", "start"), [(True, "\r\x1b[K"), (False, "")], ids=["terminal", "pipe"])
def test_a_log_message_replaces_the_progress_line(terminal: bool, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a message begins by clearing the current line; a pipe gets the message alone."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    log_to_stderr("agent")
    logging.getLogger("ringtrain_job").warning("killing rank processes")
    assert re.fullmatch(re.escape(start) + r"\d.* ringtrain agent: killing rank processes\n", out.getvalue())
