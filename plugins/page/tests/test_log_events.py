"""The events of an attempt."""

from pathlib import Path

from ringtrain_job.launcher.summary import summarize_attempt
from ringtrain_job.logs.events import EventsFile, read_log_events
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_page.summary import start_part_durations


def test_each_change_is_noted_once(tmp_path: Path) -> None:
    """A loss, the formation after it and its time, the end and its cause; looking twice notes nothing."""
    files = AttemptFiles(tmp_path)
    events = EventsFile(files)
    world = {"formation": 1, "ranks": 3, "recoveries": 0, "degraded": False, "lastRecoverySeconds": None}
    lost = {**world, "degraded": True}
    formed = {**world, "formation": 2, "ranks": 2}
    after = {**formed, "recoveries": 1, "lastRecoverySeconds": 1.25}
    for now in ("Waiting", "Running"):
        for _ in range(2):
            events.record_state(now, {"elastic": world})
    for seen in (lost, lost, formed, after, after):
        events.record_state("Running", {"elastic": seen})
    events.record_state("Failed", {"elastic": after}, "rank 1 exited with 1")
    assert [(event["kind"], event["text"]) for event in read_log_events(files)] == [
        ("Launcher", "the launcher started"),
        ("Formation", "generation 1: 3 ranks"),
        ("Running", "all ranks were started"),
        ("Loss", "a rank was lost, or fewer ranks train than requested"),
        ("Formation", "generation 2: 2 ranks"),
        ("Recovery", "all ranks have completed a new rendezvous, 1.2 s after the loss"),
        ("Failed", "rank 1 exited with 1"),
    ]


def test_a_launcher_that_is_started_again_goes_on(tmp_path: Path) -> None:
    """A restarted launcher keeps the events of the one before. Readers skip an incomplete line. A file that cannot
    be written raises no error."""
    files = AttemptFiles(tmp_path)
    EventsFile(files)
    with files.events.open("a") as file:
        file.write('{"time": 1, "ki\n')
    EventsFile(files)
    assert [event["text"] for event in read_log_events(files)] == [
        "the launcher started",
        "the launcher was restarted",
    ]
    EventsFile(AttemptFiles(tmp_path / "missing")).record_state("Running", {})


def test_a_launcher_that_is_started_again_notes_what_is_new(tmp_path: Path) -> None:
    """Not the ranks that run already, nor the formation and the recovery that the one before has noted."""
    files = AttemptFiles(tmp_path)
    world = {"formation": 2, "ranks": 2, "recoveries": 1, "degraded": True, "lastRecoverySeconds": 1.25}
    EventsFile(files).record_state("Running", {"elastic": world})
    count = len(read_log_events(files))
    events = EventsFile(files)
    for phase, elastic in (("Waiting", world), ("Running", world), ("Running", {**world, "formation": 3})):
        events.record_state(phase, {"elastic": elastic})
    events.record_state("Succeeded", {"elastic": {**world, "formation": 3}})
    assert [(event["kind"], event["text"]) for event in read_log_events(files)[count:]] == [
        ("Launcher", "the launcher was restarted"),
        ("Formation", "generation 3: 2 ranks"),
        ("Succeeded", ""),
    ]


def test_what_kubernetes_says_is_noted_once_and_in_its_time(tmp_path: Path) -> None:
    """However often it is told, by the next launcher, too; the attempt begins with its launcher all the same."""
    files = AttemptFiles(tmp_path / "1")
    files.directory.mkdir()
    said = [{"time": 10.0, "kind": "Queued", "text": "asked"}, {"time": 13.0, "kind": "Created", "text": "made"}]
    more = {"time": 14.0, "kind": "Waiting", "text": "job-worker-1: ImagePullBackOff"}
    events = EventsFile(files)
    events.record_pod_events(said)
    events.record_pod_events([*said, more])
    EventsFile(files).record_pod_events([*said, more])
    assert [event["text"] for event in read_log_events(files)] == [
        "asked",
        "made",
        "job-worker-1: ImagePullBackOff",
        "the launcher started",
        "the launcher was restarted",
    ]
    assert summarize_attempt(files).began == read_log_events(files)[3]["time"]


def test_parts_of_a_start(tmp_path: Path) -> None:
    """Each from the event before it that is known: on a cluster, on one machine, in a world that begins small."""
    times = {"Queued": 0, "Created": 3, "Scheduled": 3, "Pulling": 4, "Pulled": 44, "Launcher": 5, "Started": 45}
    later = {"Joined": 46, "Running": 47, "Step": 52}

    def events(**found: float) -> list[dict[str, object]]:
        return [{"time": float(time), "kind": kind, "text": ""} for kind, time in found.items()]

    assert start_part_durations(events(**times, **later)) == [
        ("queued", 3.0), ("scheduled", 0.0), ("prepared", 1.0), ("pulled", 40.0), ("started", 1.0),
        ("joined", 1.0), ("formed", 1.0), ("first step", 5.0),
    ]  # fmt: skip
    assert start_part_durations(events(Launcher=1, **later)) == [("joined", 45.0), ("formed", 1.0), ("first step", 5.0)]
    assert start_part_durations(events(Launcher=1, Running=3, Joined=9)) == [("formed", 2.0)]
    assert start_part_durations(events(**times, Joined=46)) == []
