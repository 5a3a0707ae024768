"""`ringtrain run` on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.commands import completed, ringtrain_run
from support.gang import DEADLINE_S, runs, until
from support.needs import need
from support.terminal import Terminal

from ringtrain.shared.contract import JOINED_LINE
from ringtrain_job.launcher.summary import summarize_attempt
from ringtrain_job.logs.events import read_log_events
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reports import stored_reports

FLOOD = 12_000
# Runs a command whose files, and those of what it starts, have at most so many bytes.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_output_logs_and_exit_status(tmp_path: Path) -> None:
    """The merged log on stdout, files under runs/, and the exit status of the first rank that failed."""
    script = 'echo "rank $RANK of $WORLD_SIZE"; test "$RANK" = 0 || exit 9'
    run = ringtrain_run(tmp_path, "-np", "2", "--name", "demo", "sh", "-c", script)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 9
    assert sorted(out.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert "First failure: rank 1, RankFailed, exit code 9\n  │ rank 1 of 2\n" in err
    logs = tmp_path / "runs/local/demo/1"
    assert f"logs   {logs}\n" in err
    assert "port" not in err
    assert (logs / "rank-0001.log").read_text() == "rank 1 of 2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("moved", ["runs/local/demo", "runs", ""])
def test_the_folder_of_a_run_in_progress_is_renamed_or_deleted(tmp_path: Path, moved: str) -> None:
    """All lines are in the renamed folder, which the summary names; of a deleted one a line says it. Nothing waits for
    the folder, also not a rank that has printed nothing before."""
    os.mkfifo(tmp_path / "go")
    script = "import os, ringtrain; print(open('go').read()); ringtrain.report(3, loss=0.5)"
    run = ringtrain_run(tmp_path, "-np", "1", "--name", "demo", sys.executable, "-c", script)
    logs = tmp_path / "runs/local/demo/1"
    until("the rank runs", lambda: any(event["kind"] == "Running" for event in read_log_events(AttemptFiles(logs))))
    if moved:
        (tmp_path / moved).rename(tmp_path / "moved")
        logs = tmp_path / "moved" / logs.relative_to(tmp_path / moved)
    else:
        shutil.rmtree(logs.parent)
    (tmp_path / "go").write_text("late")
    out, err = run.communicate(timeout=DEADLINE_S)
    assert (run.returncode, out) == (0, "[0] late\nStep 3  loss: 0.500\n"), err
    if moved:
        assert (logs / "job.log").read_text() == "[0] late\n"
        assert f"logs   {logs}\n" in err
        found = summarize_attempt(AttemptFiles(logs))
        assert (found.state, found.progress["step"]) == ("Succeeded", 3)
    else:
        assert f"{logs.parent} was deleted or moved to another file system" in err
        assert (logs.exists(), "Errno" in err) == (False, False)


def test_files_of_the_directory_are_no_modules_of_ringtrain(tmp_path: Path) -> None:
    """Launcher and agent import Python's own html and ringtrain, whatever lies in the current directory; ranks may
    import what is there."""
    for name in ("html.py", "queue.py", "ringtrain.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    (tmp_path / "helper.py").write_text("print('helper')")
    words = [str(Path(sys.executable).parent / "ringtrain"), "run", "-np", "1", sys.executable, "-c", "import helper"]
    run = completed(words, cwd=tmp_path, timeout=DEADLINE_S)
    assert (run.returncode, run.stdout) == (0, "[0] helper\n"), run.stderr


def test_lines_that_no_file_takes_are_printed(tmp_path: Path) -> None:
    """As where the log directory's disk is full: the terminal has every line, the summary says how many are in no
    file, and the run does not end with 0."""
    limited = (sys.executable, "-c", LIMITED, str(64 << 10), sys.executable, "-m", "ringtrain")
    script = f"for n in $(seq {FLOOD}); do echo $RANK $n; done"
    run = completed(
        [*limited, "run", "--name", "full", "-np", "2", "sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "RINGTRAIN_TIMEOUT": "5"},
        timeout=DEADLINE_S,
    )
    for rank in range(2):
        shown = [line for line in run.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert shown == [f"[{rank}] {rank} {number}" for number in range(1, FLOOD + 1)]
    kept = (tmp_path / "runs/local/full/1/job.log").read_text().count("\n")
    assert f"{2 * FLOOD - kept} log lines could not be written to {tmp_path / 'runs'}" in run.stderr
    assert "state  Succeeded" in run.stderr
    assert run.returncode == 74


# Each meets the others by an address of its environment.
MEETINGS = {
    "ringtrain": "import ringtrain as rt; rt.init(); rt.shutdown()",
    "torch": "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); d.destroy_process_group()",
    "a-socket": """
import os, socket
address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(address).close()
            break
        except ConnectionRefusedError:
            pass
""",
}


@pytest.mark.parametrize("script", [pytest.param(text, id=name) for name, text in MEETINGS.items()])
def test_ranks_that_meet_by_any_library_are_no_surprise(script: str, tmp_path: Path) -> None:
    """The summary has no word on it."""
    if "torch" in script:
        need("torch")
    _, err = ringtrain_run(tmp_path, "-np", "2", sys.executable, "-c", script).communicate(timeout=DEADLINE_S)
    assert "state  Succeeded" in err
    assert "connected to another" not in err


def test_ranks_that_say_so_have_met_whatever_the_kernel_has_seen(tmp_path: Path) -> None:
    """Connections that were reset leave nothing behind: the rank tells its agent, in a line that is no report."""
    line = f"{JOINED_LINE}\n".encode()
    script = f"import os; os.write(int(os.environ['RINGTRAIN_REPORT_FD']), {line!r})"
    _, err = ringtrain_run(tmp_path, "-np", "2", "--name", "met", sys.executable, "-c", script).communicate(
        timeout=DEADLINE_S
    )
    assert "state  Succeeded" in err
    assert "connected to another" not in err
    assert not (tmp_path / "runs/local/met/1/metrics.jsonl").exists()


def test_init_says_that_the_ranks_have_met(tmp_path: Path) -> None:
    """init() writes the line for a joined rank to RINGTRAIN_REPORT_FD, from which the agent reads reports."""
    script = (
        "import os, ringtrain as rt; r, w = os.pipe(); os.environ['RINGTRAIN_REPORT_FD'] = str(w); rt.init(); "
        "print(os.read(r, 9999).decode().splitlines()[-1])"
    )
    out, _ = ringtrain_run(tmp_path, "-np", "2", sys.executable, "-c", script).communicate(timeout=DEADLINE_S)
    assert sorted(out.splitlines()) == [f"[0] {JOINED_LINE}", f"[1] {JOINED_LINE}"]


@pytest.mark.parametrize("options", [(), ("-q",)], ids=["plain", "quiet"])
def test_ranks_that_never_meet_are_said(options: tuple[str, ...], tmp_path: Path) -> None:
    """A script without init() trains once on each rank: a success, with a word on it in summary and outcome."""
    script = "print('trained')"
    run = ringtrain_run(tmp_path, "-np", "2", "--name", "apart", *options, sys.executable, "-c", script)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert (run.returncode, sorted(out.split("\n"))) == (0, ["", "[0] trained", "[1] trained"])
    assert "none of the 2 ranks connected to another one: each trained independently" in err
    outcome = json.loads((tmp_path / "runs/local/apart/1/.outcome.json").read_text())
    assert outcome["message"]["warning"] in err


def test_ranks_that_follow_are_folded(tmp_path: Path) -> None:
    """The first cause with its traceback, a line for each rank that lost it; a quiet success says nothing."""
    script = (
        "import ringtrain as rt, numpy as np\n"
        "rt.init()\n"
        "if rt.rank() == 1: raise ValueError('bad data')\n"
        "rt.allreduce_async(np.ones(4, np.float32)).synchronize()\n"
    )
    (tmp_path / "train.py").write_text(script)
    out, err = ringtrain_run(tmp_path, "-np", "3", sys.executable, "train.py").communicate(timeout=DEADLINE_S)
    assert out.count("Traceback") == 1
    assert [line.split()[1:3] for line in sorted(out.splitlines()) if not line.startswith("[1]")] == [
        ["ringtrain.errors.PeerLost:", "rank"]
    ] * 2
    assert out.count("train.py:4)") == 2
    assert "First failure: rank 1, RankFailed, exit code 1\n" in err
    assert "  │ ValueError: bad data\n" in err
    assert [line.split(" followed: PeerLost: ")[0] for line in err.splitlines() if "PeerLost" in line] == [
        "rank 0",
        "rank 2",
    ]
    out, err = ringtrain_run(tmp_path, "-np", "1", "-q", "true").communicate(timeout=DEADLINE_S)
    assert (out, err) == ("", "")
    (log,) = (tmp_path / "runs").glob("local/true-*/1/job.log")
    assert log.read_text() == ""


def test_tracebacks_of_lost_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole where they are asked for, or where the script was handling an error of its own."""
    script = (
        "import sys, ringtrain as rt, numpy as np\n"
        "rt.init()\n"
        "if rt.rank() == 1: sys.exit(3)\n"
        "try: {}['a']\n"
        "except KeyError: rt.allreduce(np.ones(4, np.float32))\n"
    )
    (tmp_path / "handling.py").write_text(script)
    (tmp_path / "plain.py").write_text(script.replace("{}['a']", "{'a': 1}['a']") + "rt.barrier()\n")
    for name, shown in (("handling.py", "0"), ("plain.py", "1")):
        monkeypatch.setenv("RINGTRAIN_TRACEBACKS", shown)
        out, _ = ringtrain_run(tmp_path, "-np", "2", sys.executable, name).communicate(timeout=DEADLINE_S)
        assert "[0] Traceback" in out, out
        assert "[0] ringtrain.errors.PeerLost: rank 1" in out, out
        assert ("KeyError" in out) == (name == "handling.py"), out


@pytest.mark.parametrize(
    ("settings", "number", "most"),
    [
        ({}, signal.SIGINT, "2 s; press Ctrl-C again to kill them"),
        ({}, signal.SIGTERM, "2 s"),
        (
            {"RINGTRAIN_CHECKPOINT_DIR": "saved", "RINGTRAIN_GRACE_PERIOD": "40"},
            signal.SIGINT,
            "35 s; press Ctrl-C again to kill them",
        ),
    ],
    ids=["plain", "sigterm", "ranks-that-save"],
)
def test_interrupted(
    settings: dict[str, str], number: signal.Signals, most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal stops the ranks and says how long they may take; nothing is left; the status is the signal's."""
    for name, value in {"RINGTRAIN_TIMEOUT": "12", **settings}.items():
        monkeypatch.setenv(name, value)
    run = ringtrain_run(tmp_path, "-np", "2", "sh", "-c", "echo here; sleep 1000")
    processes = until("the ranks", lambda: len(found := psutil.Process(run.pid).children(True)) >= 6 and found)
    run.send_signal(number)
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 128 + number
    assert f"stopping 2 ranks ({most})\n" in err
    assert "state  Stopped\n" in err
    assert not [process for process in processes if runs(process)]


def test_the_duration_of_a_stopped_run_ends_with_its_ranks(tmp_path: Path) -> None:
    """Also where the ranks save for some seconds after Ctrl-C: in the summary, the list and the page."""
    ranks = "trap 'sleep 3; touch ended; exit 0' TERM; echo here; while :; do sleep 0.1; done"
    run = ringtrain_run(tmp_path, "-np", "1", "--name", "saves", "sh", "-c", ranks)
    files = AttemptFiles(tmp_path / "runs/local/saves/1")
    until("the rank", lambda: files.job_log.exists() and files.job_log.stat().st_size)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=DEADLINE_S)
    found = summarize_attempt(files)
    assert found.ended is not None
    assert found.ended >= (tmp_path / "ended").stat().st_mtime - 0.1  # the file system's clock is coarser
    assert f"took   {found.shown['took']}\n" in err


def test_after_a_second_interrupt_the_last_step_is_that_of_the_reports(tmp_path: Path) -> None:
    """Ranks that ignore Ctrl-C report until they are killed; the outcome has the step that all of them reported."""
    (tmp_path / "train.py").write_text(
        "import signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "import ringtrain as rt\n"
        "for step in range(1, 5000): rt.report(step, loss=1 / step); time.sleep(0.02)\n"
    )
    run = ringtrain_run(tmp_path, "-np", "2", "--name", "twice", sys.executable, "train.py")
    files = AttemptFiles(tmp_path / "runs/local/twice/1")
    until("reports", lambda: files.metrics.exists() and files.metrics.read_bytes().count(b"\n") > 10)
    run.send_signal(signal.SIGINT)
    until("stopping", lambda: any(event["kind"] == "Stopped" for event in read_log_events(files)))
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 130
    last = dict(sorted((rank, report["step"]) for rank, report in stored_reports(files.metrics)))
    assert f"steps  {min(last.values())}," in err
    assert summarize_attempt(files).progress["step"] == min(last.values())


def test_a_launcher_that_ends_before_its_agent_has_reached_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with it, and with its words: the agent neither waits for another one nor tells that it does."""
    monkeypatch.setenv("RINGTRAIN_SINKS", "foo")
    run = ringtrain_run(tmp_path, "-np", "2", "--name", "refused", "sh", "-c", "echo here; sleep 1000")
    out, err = run.communicate(timeout=DEADLINE_S)
    assert (run.returncode, out) == (64, "")
    assert "RINGTRAIN_SINKS='foo': 'foo' is not a sink" in err
    assert "state  Failed" in err
    summary = summarize_attempt(AttemptFiles(tmp_path / "runs/local/refused/1"))
    assert (summary.state, summary.ranks, summary.failure and summary.failure["reason"]) == (
        "Failed", 2, "BadConfiguration",
    )  # fmt: skip
    assert "has not been reached" not in err


def _failing(tmp_path: Path, *options: str) -> list[str]:
    """A run whose rank reports eight steps of twelve, each once there is a file `step-N`, and then fails."""
    script = (
        "import pathlib, sys, time, ringtrain as rt\n"
        "for step in range(1, 9):\n"
        " end = time.monotonic() + 120\n"
        " time.sleep(0.15)  # longer than between two bars\n"
        " while not pathlib.Path(f'step-{step}').exists() and time.monotonic() < end:\n"
        "  time.sleep(0.02)\n"
        " print('at', step, '.' * 90); rt.report(step=step, samples=8, total_steps=12, loss=0.5)\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "train.py").write_text(script)
    run = [sys.executable, "-m", "ringtrain", "run", "-np", "1", "--name", "t"]
    return [*run, *options, sys.executable, "-u", "train.py"]


def test_the_bar_of_a_run_that_fails(tmp_path: Path) -> None:
    """Below all lines are the steps, in percents and as a bar, the time left and the speed; 100 % are never there,
    nothing is at the end, and each line of the log is whole, also one that the terminal has to break."""
    terminal = Terminal(_failing(tmp_path), tmp_path, columns=80)
    try:
        (tmp_path / "step-1").touch()
        terminal.until(r"\nStep 1/12  8 %  \[#+-+\]  loss: 0.500$")
        for step in range(2, 8):
            (tmp_path / f"step-{step}").touch()
            terminal.until(rf"\nStep {step}/12  {100 * step // 12} %  \[#+-+\]  \d+ s left  \d+.\d samples/sec  loss:")
            assert sum(line.startswith("Step ") for line in terminal.lines()) == 1
        lines = terminal.lines()[1:-1]
        assert "".join(lines) == "".join(f"[0] at {step} {'.' * 90}" for step in range(1, 8))
        (tmp_path / "step-8").touch()
        assert terminal.end() == 3
        lines = terminal.lines()
    finally:
        terminal.close()
    assert not any(line.startswith("Step ") or "100 %" in line for line in lines)
    assert any(line.startswith("steps  8/12, loss 0.5") for line in lines)


def test_no_bar_where_nobody_wants_one(tmp_path: Path) -> None:
    """With -q the terminal has the ranks' lines alone; a pipe has lines, and no bar among them."""
    for step in range(1, 9):
        (tmp_path / f"step-{step}").touch()
    terminal = Terminal(_failing(tmp_path, "-q"), tmp_path, columns=120)
    try:
        assert terminal.end() == 3
        assert terminal.lines()[:8] == [f"[0] at {step} {'.' * 90}" for step in range(1, 9)]
        assert not any("Step" in line for line in terminal.lines())
    finally:
        terminal.close()
    done = subprocess.run(_failing(tmp_path, "--name", "u"), cwd=tmp_path, capture_output=True, timeout=DEADLINE_S)
    assert b"Step 1/12  loss: 0.500\n" in done.stdout
    assert not any(sign in done.stdout + done.stderr for sign in (b"\r", b"\x1b", b" left", b" %"))


def test_on_a_terminal(tmp_path: Path) -> None:
    """Progress is one line that stays below all others and is gone at the end; nothing is broken within a word."""
    script = (
        "import threading, ringtrain as rt\n"
        "for step in range(1, 12):\n"
        " print('at', step); rt.report(step=step, samples=8, total_steps=11, loss=0.5)\n"
        "threading.Event().wait()\n"
    )
    (tmp_path / "train.py").write_text(script)
    words = [sys.executable, "-m", "ringtrain", "run", "-np", "1", sys.executable, "-u", "train.py"]
    terminal = Terminal(words, tmp_path, columns=40)
    try:
        terminal.until(r"at 11\nStep 11/11  100 %  ending( .*)?$")
        assert [line for line in terminal.lines()[:-1] if line.startswith("Step")] == []
        terminal.type("\x03")
        assert terminal.end() == 130
        lines = terminal.lines()
    finally:
        terminal.close()
    end = next(index for index, line in enumerate(lines) if line.startswith("stopping "))
    assert lines[end:][:2] == ["stopping 1 rank (10 s; press Ctrl-C", "again to kill them)"]
    assert any(line.startswith("steps  ") and "11/11, loss 0.5," in line for line in lines)
    assert not any(line.startswith("Step ") for line in lines)


def test_progress_adds_up_in_a_world_of_another_size(tmp_path: Path) -> None:
    """The digits go on with one rank where two had stopped: the last step is the last of as many as are named."""
    digits = [sys.executable, str(Path(__file__).parents[3] / "examples/digits/train.py")]
    for ranks, steps in ((2, 23), (1, 90)):
        options = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--epochs", str(3 - ranks))
        out, err = ringtrain_run(tmp_path, "-np", str(ranks), *digits, *options).communicate(timeout=DEADLINE_S)
        assert f"steps  {steps}/{steps}, loss " in err, out + err
        assert out.count("global batch") == 1


def test_killed(tmp_path: Path) -> None:
    """kill -9 of `ringtrain run` takes launcher, agent and ranks along."""
    run = ringtrain_run(tmp_path, "-np", "2", "sleep", "1000")
    processes = until("the ranks", lambda: len(found := psutil.Process(run.pid).children(True)) >= 4 and found)
    run.kill()
    run.communicate(timeout=DEADLINE_S)
    until("nothing left", lambda: not any(runs(process) for process in processes))


@pytest.mark.parametrize("level", ["", "error"])
def test_verbose_counts_whatever_the_environment_says(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher and agent say what they do, also where RINGTRAIN_LOG_LEVEL asks for less."""
    monkeypatch.setenv("RINGTRAIN_LOG_LEVEL", level)
    _, err = ringtrain_run(tmp_path, "-np", "1", "-v", "true").communicate(timeout=DEADLINE_S)
    assert "ringtrain launcher: all workers have registered" in err
    assert "ringtrain agent: " in err


def test_what_the_launcher_refuses_is_said_before_anything_starts(tmp_path: Path) -> None:
    """Once, and not after the agent has looked for a launcher for half a minute."""
    words = ("-np", "1", "--replace-timeout", "nan", "true")  # a number of click's ranges
    run = ringtrain_run(tmp_path, *words)
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 64
    assert "\nError: RINGTRAIN_ELASTIC_REPLACE_TIMEOUT='nan': expected seconds above 0" in err
    assert "has not been reached" not in err


def test_interrupted_while_the_launcher_starts(tmp_path: Path) -> None:
    """The launcher stops the run as soon as it can, and the run is listed."""
    run = ringtrain_run(tmp_path, "-np", "2", "--name", "early", "sleep", "1000")
    until("launcher, agent and cleaner", lambda: len(psutil.Process(run.pid).children()) == 3)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 130
    assert "state  Stopped\n" in err
    assert "Aborted" not in err
    files = AttemptFiles(tmp_path / "runs/local/early/1")
    assert summarize_attempt(files).state == "Stopped"
    kinds = [event["kind"] for event in read_log_events(files)]
    assert ("Stopped" in kinds, "Failed" in kinds) == (True, False)


@pytest.mark.parametrize(
    "setting",
    [
        "RINGTRAIN_TRANSPORT='foo': expected one of auto, grpc, ",
        "RINGTRAIN_DATA_PATH='foo': expected one of auto, grpcio",
        "RINGTRAIN_STALL_TIMEOUT='foo': expected a number of seconds",
        "RINGTRAIN_TRACEBACKS='foo': expected one of 0, 1",
    ],
)
def test_what_ranks_refuse_is_said_before_they_start(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and no run."""
    monkeypatch.setenv(setting.partition("=")[0], "foo")
    out, err = (run := ringtrain_run(tmp_path, "-np", "2", "echo", "started")).communicate(timeout=DEADLINE_S)
    assert (run.returncode, out) == (64, "")
    assert [setting in line for line in err.splitlines()] == [False, True]
    assert list((tmp_path / "runs/local").iterdir()) == []


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """Asks the ranks to end, as Ctrl-C does: they can still save. No secret is left."""
    ranks = "trap 'touch saved.$RANK; exit 0' TERM; echo here; while :; do sleep 0.1; done"
    terminal = Terminal([sys.executable, "-m", "ringtrain", "run", "-np", "2", "sh", "-c", ranks], tmp_path, columns=80)
    try:
        terminal.until(r"here\n.*here")
        assert terminal.hang_up() == 128 + signal.SIGHUP
    finally:
        terminal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "saved.0", "saved.1"]


@pytest.fixture(autouse=True)
def hang_up_ends_programs() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, also by what tests start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_fail_on_nan_without_a_loss_is_a_warning(tmp_path: Path) -> None:
    """A script whose losses nobody recognises would run through every NaN without a word."""
    options = ("-np", "1", "--name", "blind", "--fail-on-nan")
    run = ringtrain_run(tmp_path, *options, sys.executable, "-c", "print('Epoch 1, Loss: nan')")
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0
    assert "had no effect: no rank reported a loss" in err


@pytest.mark.parametrize(
    "then",
    ["time.sleep(300)", "sys.exit()", "rt.report(4, loss=0.5); time.sleep(300)"],
    ids=["runs-on", "has-ended-well", "recovers"],
)
def test_a_loss_that_is_not_finite_ends_the_run(then: str, tmp_path: Path) -> None:
    """With --fail-on-nan: also where the ranks' ends are known before the report is."""
    program = f"""if True:
        import math, os, sys, time, ringtrain as rt
        for step in (1, 2, 3):
            rt.report(step, loss=math.nan if step == 3 and os.environ["RANK"] == "1" else 0.5)
        {then}"""
    options = ("-np", "2", "--name", "nan", "--fail-on-nan")
    run = ringtrain_run(tmp_path, *options, sys.executable, "-c", program)
    _, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 65
    assert "First failure: rank 1, NotFinite" in err
    assert "the loss reported by rank 1 is NaN since step 3 (--fail-on-nan)" in err
    assert summarize_attempt(AttemptFiles(tmp_path / "runs/local/nan/1")).shown["loss"] == "NaN"


def test_too_few_open_files_are_an_error_of_one_line(tmp_path: Path) -> None:
    """It is printed as other errors, not as a line of a log, and no run is listed."""
    words = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", str(Path(sys.executable).parent / "ringtrain")]
    run = completed([*words, "run", "-np", "2", "--quiet", "true"], cwd=tmp_path, timeout=DEADLINE_S)
    assert run.returncode == 64
    (line,) = run.stderr.splitlines()
    assert line.startswith(
        "Error: a process may open 64 files on this machine (ulimit -n), but this run needs 273; raise"
    )
    assert list((tmp_path / "runs" / "local").iterdir()) == []
