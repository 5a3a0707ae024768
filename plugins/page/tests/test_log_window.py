"""Parts of a merged log."""

from pathlib import Path

import pytest

from ringtrain_page import log_window
from ringtrain_page.log_window import WantedPageLines, log_window_after, log_window_before


def _log(folder: Path, lines: list[str], rest: str = "") -> Path:
    path = folder / "job.log"
    path.write_text("".join(f"{line}\n" for line in lines) + rest)
    return path


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(WantedPageLines(), id="all"),
        pytest.param(WantedPageLines(rank=1), id="rank"),
        pytest.param(WantedPageLines(text="STEP 7"), id="text"),
        pytest.param(WantedPageLines(rank=11, text="7"), id="both"),
    ],
)
def test_windows_hold_each_wanted_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: WantedPageLines
) -> None:
    """One after the other, from the end to the begin, whatever is read at a time; in order."""
    monkeypatch.setattr(log_window, "_CHUNK", 1000)
    monkeypatch.setattr(log_window, "MOST_READ", 3000)
    monkeypatch.setattr(log_window, "WINDOW_LINES", 50)
    lines = [f"[{number % 13}] step {number} " + "é" * (number % 40) for number in range(2000)]
    path = _log(tmp_path, lines, "[0] not yet wh")
    found: list[str] = []
    end: int | None = None
    while end != 0:
        window = log_window_before(path, wanted, end)
        assert len(window.lines) <= 50
        assert end is None or window.begin < end
        found, end = [*window.lines, *found], window.begin
    assert found == [line for line in lines if wanted.matches(line)]


def test_what_is_added_follows_the_first_window(tmp_path: Path) -> None:
    """Each whole line once; a line that is being written waits for its end."""
    path = _log(tmp_path, ["[0] a", "[1] b"], "[0] c")
    first = log_window_before(path, WantedPageLines(rank=0))
    assert first.lines == ("[0] a",)
    with path.open("a") as log:
        log.write("d\n[1] e\n[0] f\n[0] g")
    second = log_window_after(path, WantedPageLines(rank=0), first.end)
    assert (second.lines, second.skipped) == (("[0] cd", "[0] f"), 0)
    assert log_window_after(path, WantedPageLines(rank=0), second.end).lines == ()


def test_who_is_far_behind_gets_the_newest_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes between are counted, and no line is cut."""
    monkeypatch.setattr(log_window, "_CHUNK", 100)
    path = _log(tmp_path, [f"[0] line {number}" for number in range(100)])
    window = log_window_after(path, WantedPageLines(), 0)
    assert window.lines[-1] == "[0] line 99"
    assert all(line.startswith("[0] line ") for line in window.lines)
    assert window.skipped == window.begin == path.stat().st_size - sum(len(line) + 1 for line in window.lines)


def test_more_lines_than_a_window_has_are_counted_as_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those before it, the window has every line that is wanted."""
    monkeypatch.setattr(log_window, "WINDOW_LINES", 50)
    lines = [f"[{number % 2}] line {number}" for number in range(300)]
    path, wanted = _log(tmp_path, lines, "[1] not yet"), WantedPageLines(rank=1)
    begin = len(lines[0]) + 1
    window = log_window_after(path, wanted, begin)
    assert len(window.lines) == 50
    assert window.begin == begin + window.skipped > begin
    assert window.end == path.stat().st_size - len("[1] not yet")
    before = log_window_before(path, wanted, window.begin)
    assert (*before.lines, *window.lines) == tuple(line for line in lines if wanted.matches(line))[-100:]


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    """A page holds no line of 64 KiB."""
    (line,) = log_window_before(_log(tmp_path, ["[0] " + "x" * 60_000]), WantedPageLines()).lines
    assert len(line) < 2100
    assert line.endswith("… (58004 more characters)")


def test_a_text_is_found_in_all_of_a_long_line(tmp_path: Path) -> None:
    """Also where the page does not show it; what the page says of the rest is no text of the line."""
    path = _log(tmp_path, ["[0] " + "x" * 60_000 + " Needle", "[0] short"])
    for text, found in (("needle", 1), ("more characters", 0)):
        assert len(log_window_before(path, WantedPageLines(text=text)).lines) == found
        assert len(log_window_after(path, WantedPageLines(text=text), 0).lines) == found


def test_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    """It has no lines."""
    assert log_window_before(tmp_path / "job.log", WantedPageLines()).lines == ()
    assert log_window_after(tmp_path / "job.log", WantedPageLines(), 0).lines == ()
