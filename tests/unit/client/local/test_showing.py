"""Output for people: manifest problems, lines, the panel, the summary."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from support.jobs import job
from support.planworld import World

from ringtrain_client.local.cluster import LocalCluster
from ringtrain_client.local.driver import JobView, LocalDriver
from ringtrain_client.local.manifest import LocalManifestFile, ManifestUnreadable, load_job
from ringtrain_client.local.panel import StepPace, render_live_display
from ringtrain_client.local.past_runs import PastLocalRunTail
from ringtrain_client.local.plain import PlainLocalDisplay
from ringtrain_client.local.process import LocalProcessRunner
from ringtrain_client.local.summary import LocalRunResults, print_local_summary, read_local_results
from ringtrain_client.local.wording import progress_numbers
from ringtrain_operator.errors import Invalid
from ringtrain_operator.observe.model import Observed


def view(w: World) -> JobView:
    """Return a view of a job for a display."""
    return JobView(w.job, w.status, w.observed(), ())


def running(step: int) -> World:
    """Return a gang at this step."""
    w = World(job())
    w.start_gang(step)
    w.report["ranks"] = [{"rank": r, "state": "Running", "step": step, "exitCode": None} for r in range(2)]
    return w


def on_screen(w: World) -> str:
    """Return the panel as text."""
    console = Console(width=90, file=io.StringIO(), force_terminal=False)
    console.print(render_live_display(view(w), datetime(2026, 1, 1, 0, 1, tzinfo=UTC)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_panel_shows_steps_numbers_and_ranks() -> None:
    """The panel has a bar, loss, rate, and the ranks of each worker."""
    text = on_screen(running(40))
    for part in ("default/digits", "Running", "40/100", "40%", "loss 0.5000", "samples/s 10", "digits-worker-1"):
        assert part in text
    assert "rank 1 Running step 40" in text


def test_the_panel_says_how_long_it_takes_from_here() -> None:
    """The estimate uses the steps of this attempt since the first one observed; None without progress or at the end."""
    began, pace = datetime(2026, 1, 1, tzinfo=UTC), StepPace()
    left = [pace.seconds_left(view(running(step)), began + timedelta(seconds=s)) for s, step in LOOKS]
    assert left == [None, None, 50.0, 50.0, 15.0, None, None, 29.0]
    console = Console(width=90, file=io.StringIO(), force_terminal=False)
    console.print(render_live_display(view(running(40)), began, 75.4))
    assert "40/100   40%  1 min 15 s left" in console.file.getvalue()  # type: ignore[attr-defined]


# Seconds and step; at the end, an attempt that starts again.
LOOKS = [(0, 40), (2, 40), (10, 50), (13, 50), (15, 70), (20, 100), (21, 10), (22, 13)]


def test_ranks_of_a_worker_that_fit_no_line() -> None:
    """Eight ranks use several lines, and none loses its state or step."""
    w = running(40)
    w.report["ranks"] = [{"rank": r, "state": "Running", "step": 123456} for r in range(16)]
    text = on_screen(w)
    assert all(f"rank {rank} Running step 123456 " in text for rank in range(16))
    assert "digits-worker-1 " in text


def test_many_ranks_are_counted() -> None:
    """Ranks that do not fit on a screen are counted by state."""
    w = running(40)
    w.report["ranks"] = [{"rank": r, "state": "Running" if r else "Failed"} for r in range(100)]
    text = on_screen(w)
    assert "99 Running" in text
    assert "1 Failed" in text


def test_lines_say_what_changed() -> None:
    """A line is printed for each change, and only then."""
    w, out = World(job()), io.StringIO()
    display = PlainLocalDisplay(out, None)
    for _ in range(3):
        display.show(view(w))
    w.start_gang(7)
    display.show(view(w))
    lines = out.getvalue().splitlines()
    assert lines[-2:] == [
        "default/digits Running: attempt 1 runs with 2 ranks",
        "step 7/100, loss 0.5000, samples/s 10",
    ]
    assert len(lines) == 3


def test_lines_about_progress_become_rare() -> None:
    """The pauses grow from one second to a minute, as those of `ringtrain run`."""
    now, out, seen = 0.0, io.StringIO(), []
    lines = PlainLocalDisplay(out, None, clock=lambda: now)
    for second in range(400):
        now, before = float(second), out.getvalue().count("step")
        w = running(1)
        w.report["progress"] = {"step": second, "totalSteps": 1000}
        lines.show(view(w))
        seen += [second] if out.getvalue().count("step") > before else []
    assert seen == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_small_and_large_numbers_are_told() -> None:
    """A low rate and a small loss are not shown as 0, and a huge loss is shown in a few digits."""
    told = [("loss", "0.0004123"), ("samples/s", "0.42"), ("lr", "1e-05")]
    assert progress_numbers({"loss": 0.0004123, "samplesPerSecond": 0.42, "metrics": {"lr": 1e-5}}) == told
    assert progress_numbers({"loss": 1e300, "samplesPerSecond": 12345.6}) == [
        ("loss", "1e+300"),
        ("samples/s", "12,346"),
    ]
    assert progress_numbers({"loss": 0.0}) == [("loss", "0.0000")]


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """Panel, lines and summary show NaN with its step and rank, and no finite value from before it."""
    w, out = running(40), io.StringIO()
    wrong = {name: {"value": "NaN", "since": 10, "rank": 0} for name in ("accuracy", "loss")}
    w.report["progress"] |= {"loss": None, "notFinite": wrong}
    w.settle()
    said = "loss NaN since step 10 (rank 0), accuracy NaN since step 10 (rank 0)"
    from_status = JobView(w.job, w.status, Observed(), ())
    for one in (view(w), from_status):
        PlainLocalDisplay(out, None).show(one)
        assert out.getvalue().splitlines()[-1] == f"step 40/100, samples/s 10, {said}"
    assert said in " ".join(on_screen(w).replace("│", " ").split())
    directory = tmp_path / "1"
    directory.mkdir()
    rows = [{"metrics": {"accuracy": 0.5934}}, {"notFinite": {"accuracy": "NaN"}}, {"notFinite": {"f1": [1]}}]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = io.StringIO()
    print_local_summary(Console(file=out, width=200), w.status, read_local_results(tmp_path, 1))
    assert out.getvalue().splitlines()[1:3] == ["accuracy  NaN", f"steps     40/100 (40%), samples/s 10, {said}"]


def test_the_summary_of_a_failure() -> None:
    """The summary has state, cause, and the failed rank's last lines."""
    w = running(1)
    w.launcher_ends(64, reason="BadConfiguration", message="no data", logTail=["Traceback", "boom"])
    out = io.StringIO()
    nothing = read_local_results(Path("/nonexistent"), 1)
    print_local_summary(Console(file=out, width=80), w.status, nothing)
    assert out.getvalue().splitlines() == [
        "state     Failed",
        "          a restart would not help",
        "steps     1/100 (1%), loss 0.5000, samples/s 10",
        "job took  0 s, 1 attempt",
        "",
        "First failure of attempt 1: rank 0 (digits-worker-0), BadConfiguration, exit code 64",
        "no data",
        "  │ Traceback",
        "  │ boom",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_summaries_break_between_words(width: int) -> None:
    """At any width no line is too long, no word is broken, and further lines are indented."""
    w = running(1)
    words = "the quick brown fox jumps over the lazy dog, " * 4
    w.launcher_ends(64, reason="BadConfiguration", message=words, logTail=["    indented " + words])
    out = io.StringIO()
    logs = Path("/a/path/longer/than/the/narrowest/of/these/terminals/that/stays/whole/and/can/be/copied")
    console = Console(file=out, width=width, force_terminal=True, no_color=True, color_system=None)
    print_local_summary(console, w.status, LocalRunResults(logs, {}))
    lines = out.getvalue().splitlines()
    assert [line for line in lines if len(line) > width and str(logs) not in line] == []
    assert str(logs) in out.getvalue()
    assert {word for line in lines for word in line.split()} >= set(words.split())
    assert sum(line.startswith("  │ ") for line in lines) >= 2


def test_the_accuracy_that_training_code_prints(tmp_path: Path) -> None:
    """Without reported metrics, the last printed accuracy is used."""
    directory = tmp_path / "default/digits/1"
    directory.mkdir(parents=True)
    (directory / "job.log").write_text("[0] accuracy 0.5\n[0] test accuracy: 0.9806\n")
    assert read_local_results(tmp_path / "default" / "digits", 1).metrics == {"test accuracy": 0.9806}
    (directory / "job.log").write_text("[0] accuracy 0.5\n[0] accuracy: nan\n")
    assert str(read_local_results(tmp_path / "default" / "digits", 1).metrics) == "{'accuracy': nan}"
    (directory / "metrics.jsonl").write_text('{"metrics": {"f1": 0.5}}\n{"metrics": {"f1"')
    assert read_local_results(tmp_path / "default" / "digits", 1).metrics == {"f1": 0.5}


def test_output_is_followed_by_whole_lines(tmp_path: Path) -> None:
    """An incomplete line waits for its end; a new attempt starts at its beginning."""
    log = tmp_path / "1" / "job.log"
    tail = PastLocalRunTail(tmp_path)
    assert tail.lines(1) == []
    log.parent.mkdir()
    log.write_text("[0] a\n[1] b")
    assert tail.lines(1) == ["[0] a"]
    log.write_text("[0] a\n[1] bc\n")
    assert tail.lines(1) == ["[1] bc"]
    assert tail.lines(2) == []
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "job.log").write_text("[0] d\n")
    assert tail.lines(2) == ["[0] d"]


def test_the_last_lines_of_an_attempt_are_shown(tmp_path: Path) -> None:
    """The last lines of a failed attempt come before the next attempt's lines."""
    tail = PastLocalRunTail(tmp_path)
    for attempt, text in ((1, "[0] a\n"), (2, "[0] c\n")):
        (tmp_path / str(attempt)).mkdir()
        (tmp_path / str(attempt) / "job.log").write_text(text)
    assert tail.lines(1) == ["[0] a"]
    (tmp_path / "1" / "job.log").write_text("[0] a\n[0] Traceback\n")
    assert tail.lines(2) == ["[0] Traceback", "[0] c"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("a: [", "not YAML", id="not-yaml"),
        pytest.param("kind: Pod", "has no DistributedTrainingJob, but Pod", id="no-job"),
        pytest.param("", "the file is empty; expected a DistributedTrainingJob", id="empty"),
        pytest.param("hello", "the file has plain text; expected a DistributedTrainingJob", id="text"),
        pytest.param("- a: 1", "the file has a list; expected a DistributedTrainingJob", id="list"),
        pytest.param("a: 1", "kind is missing; expected kind: DistributedTrainingJob", id="no-kind"),
        pytest.param(
            "{kind: MPIJob, metadata: {name: pi}}",
            "has no DistributedTrainingJob, but MPIJob pi; dtj convert converts it to a job",
            id="to-be-converted",
        ),
        pytest.param(
            "{kind: DistributedTrainingjobs, metadata: {name: pi}}",
            "but DistributedTrainingjobs pi; did you mean DistributedTrainingJob\\?",
            id="misspelled",
        ),
        pytest.param(yaml.safe_dump_all([job("a"), job("b")]), "has 2 jobs", id="two-jobs"),
    ],
)
def test_a_manifest_that_cannot_be_run(tmp_path: Path, text: str, says: str) -> None:
    """The error has the file and the problem."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ManifestUnreadable, match=rf"job\.yaml: .*{says}"):
        load_job(path)


def test_a_job_of_another_controller_is_refused(tmp_path: Path) -> None:
    """A job of another controller is refused, because nothing would run it."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job(managedBy="kueue.x-k8s.io/multikueue")))
    with pytest.raises(Invalid, match=r"spec\.managedBy: is 'kueue\.x-k8s\.io/multikueue'.*; remove it"):
        load_job(path)


def test_a_saved_change_is_an_apply(tmp_path: Path) -> None:
    """A changed spec takes effect with the next generation; a broken or forbidden one does not."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job()))
    obj, file = {**load_job(path), "status": {"ledger": {"hasRun": True}}}, LocalManifestFile(path)
    assert file.refresh(obj) is obj
    path.write_text("a: [")
    assert file.refresh(obj) is obj
    assert file.refusal == ""  # the file may be half-saved
    assert file.refresh(obj) is obj
    assert "not YAML" in file.refusal
    path.write_text(yaml.safe_dump(job(backend="mpi")))
    assert file.refresh(obj)["spec"].get("backend") is None
    assert file.refusal.startswith("spec.backend: backend can change only while the job is suspended")
    path.write_text(yaml.safe_dump(job(workers=5)))
    changed = file.refresh(obj)
    assert (changed["spec"]["worker"]["replicas"], changed["metadata"]["generation"]) == (5, 2)
    assert file.refusal == ""


def test_a_change_that_is_refused_is_said_once(tmp_path: Path) -> None:
    """A refused change is reported once in any display, with the reason."""
    path, out = tmp_path / "job.yaml", io.StringIO()
    path.write_text(yaml.safe_dump(job(runPolicy={"suspend": True})))
    runner = LocalProcessRunner(tmp_path / "run", tmp_path / "claims")
    file = LocalManifestFile(path)
    driver = LocalDriver(LocalCluster(load_job(path), runner), PlainLocalDisplay(out, None), file)
    driver.step()
    path.write_text(yaml.safe_dump(job(runPolicy={"suspend": True}, slotsPerWorker="two")))
    for _ in range(3):
        driver.step()
    runner.close()
    (refusal,) = [line for line in out.getvalue().splitlines() if line.startswith("ChangeRefused")]
    assert "spec.slotsPerWorker: is 'two'" in refusal
    assert refusal.endswith("; the job continues without the change")
