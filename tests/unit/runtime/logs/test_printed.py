"""Progress that is read from lines printed by scripts."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringtrain.errors import ConfigurationError
from ringtrain_job.logs.metrics_rule import metrics_rule_problem
from ringtrain_job.logs.printed import PrintedReports, PrintedReportsChoice
from ringtrain_job.logs.reports import parse_report


class Reader:
    """Reads lines of ranks, a second after each other."""

    def __init__(self, rule: str = "", ranks: int = 1, *, elastic: bool = False) -> None:
        self._now = 1000.0
        self.printed = PrintedReports(rule, ranks, elastic=elastic, clock=lambda: self._now)

    def read(self, *lines: str, rank: int = 0) -> list[dict[str, Any]]:
        """The reports of all lines, without their times."""
        found = []
        for line in lines:
            self._now += 1.0
            for report in self.printed.read(rank, f"{line}\n".encode()).splitlines():
                found.append({key: value for key, value in parse_report(report).items() if key != "time"})
        return found


def _told(reports: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(report.get(key) for key in keys) for report in reports]


def test_tensorflow_benchmarks() -> None:
    """A line counts one rank's images, the last one all ranks': both are in the reports."""
    found = Reader(ranks=4).read(
        "Step\tImg/sec\ttotal_loss",
        "1\timages/sec: 57.0 +/- 0.0 (jitter = 0.0)\t8.262",
        "10\timages/sec: 56.0 +/- 0.1 (jitter = 0.3)\t7.974",
        "20\timages/sec: 56.5 +/- 0.1 (jitter = 0.3)\tnan",
        "-" * 64,
        "total images/sec: 225.91",
    )
    assert _told(found, "step", "samples", "loss", "unit") == [
        (1, None, 8.262, "images"),
        (10, 4 * 56.0, 7.974, "images"),
        (20, 4 * 56.5, None, "images"),
        (20, None, None, "images"),
    ]
    assert found[2]["notFinite"] == {"loss": "NaN"}
    assert found[3]["metrics"] == {"total images/sec": 225.91}


def test_horovods_synthetic_benchmarks() -> None:
    """Iterations are steps from 1 on."""
    found = Reader(ranks=2).read(
        "Running benchmark...",
        "Iter #0: 12.5 img/sec per CPU",
        "Iter #1: 13.5 img/sec per CPU",
        "Img/sec per CPU: 13.0 +-1.0",
        "Total img/sec on 2 CPU(s): 26.0 +-2.0",
    )
    assert _told(found, "step", "samples", "unit") == [(1, None, "img"), (2, 27.0, "img")] + 2 * [(2, None, "img")]
    assert found[-1]["metrics"] == {"total img/sec on 2 cpu(s)": 26.0}


def test_a_bar_that_begins_again_counts_on() -> None:
    """A bar that starts again is the next epoch; the remaining time is known if the bar contains the number of
    epochs."""
    bar = "{}: {:3d}%|████      | {}/100 [00:10<00:12, 45.2it/s, loss=0.{}, acc=91]"
    lines = [bar.format(f"Epoch {e}/3", n, n, n) for e in (1, 2) for n in (10, 50, 100)]
    found = Reader().read(f"{'Epoch 1/3'}:   0%|          | 0/100 [00:00<?, ?it/s]", *lines)
    assert _told(found, "step", "totalSteps", "epoch", "samples") == [
        (10, 300, 1, None),
        (50, 300, 1, 40),
        (100, 300, 1, 50),
        (110, 300, 2, 10),
        (150, 300, 2, 40),
        (200, 300, 2, 50),
    ]
    assert found[0]["loss"] == 0.10
    assert found[0]["metrics"] == {"acc": 91.0}


def test_the_longest_bar_is_the_one_that_trains() -> None:
    """Earlier loops are a separate series; bars around it and inside it are ignored."""
    found = Reader().read(
        "100%|██████████| 2/2 [00:01<00:00, 1.20s/it]",
        " 10%|█         | 50/500 [00:10<01:30, 5.00it/s]",
        "epochs: 20%|██        | 1/5 [00:10<00:12, 45.2s/it]",
        "100%|██████████| 99/99 [00:01<00:00, 45.2it/s]",
        "Evaluating: 50%|█████     | 500/1000 [00:01<00:00, 45.2it/s]",
        "model.bin: 50%|█████     | 5000/10000 [00:01<00:00, 450B/s]",
        "Map: 50%|█████     | 5000/10000 [00:01<00:00, 450 examples/s]",
        " 20%|██        | 100/500 [00:20<01:20, 5.00it/s]",
    )
    assert _told(found, "step", "totalSteps", "printed") == [(2, 2, 1), (50, 500, 2), (100, 500, 2)]


def test_a_bar_that_is_drawn_again() -> None:
    """A line for the same step is no report, because no time has passed; the last one is, because of its loss."""
    bar = "{}%|█ | {}/100 [00:10<00:12, 45.2it/s, loss={}]"
    drawn = ((9, 0.5), (9, 0.4), (9, 0.3), (18, 0.2), (100, 0.1), (100, 0.05))
    found = Reader().read(*(bar.format(n, n, loss) for n, loss in drawn))
    assert _told(found, "step", "loss", "samples") == [
        (9, 0.5, None),
        (18, 0.2, 9),
        (100, 0.1, 82),
        (100, 0.05, 0),
    ]


def test_a_bar_without_an_end() -> None:
    """Steps are known, and how many there will be is not."""
    found = Reader().read("0it [00:00, ?it/s]", "450it [00:10, 45.2it/s]", "900it [00:20, 45.2it/s, loss=1e-3]")
    assert _told(found, "step", "totalSteps", "loss") == [(450, None, None), (900, None, 0.001)]


def test_keras() -> None:
    """The parser handles colours and backspaces, output without a bar, and two calls of `fit`; evaluation is
    ignored."""
    bar = "\x1b[1m{}/4\x1b[0m \x1b[32m━━━━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m5s\x1b[0m 12ms/step - loss: {}" + "\x08" * 60
    found = Reader().read(
        "4/4 ━━━━ 0s 9ms/step",
        "Epoch 1/2",
        bar.format(1, 0.5),
        bar.format(4, 0.4),
        "4/4 ━━━━━━━━ 5s 12ms/step - loss: 0.4 - val_loss: 0.6",
        "2/4 ━━━━ 0s 9ms/step - loss: 0.6",
        "Epoch 2/2",
        "4/4 - 5s - 12ms/step - accuracy: 0.91 - loss: 0.31",
        "4/4 - 0s - 9ms/step - accuracy: 0.95 - loss: 0.2",
        "Epoch 1/1",
        "3/4 ━━━━ 1s 12ms/step - loss: 0.25",
    )
    assert _told(found, "step", "totalSteps", "epoch", "loss", "samples") == [
        (1, 8, 1, 0.5, None),
        (4, 8, 1, 0.4, 3),
        (4, 8, 1, 0.4, 0),
        (8, 8, 2, 0.31, 4),
        (11, 12, 1, 0.25, 3),
    ]
    assert found[2]["metrics"] == {"val_loss": 0.6}


def test_a_users_rule() -> None:
    """The rule's groups name the values; all other lines, even in known forms, are ignored."""
    rule = r"epoch (?P<epoch>\d+), (?P<step>\d+) of (?P<total>\d+): loss=(?P<loss>\S+) top1=(?P<top1>\S+)"
    found = Reader(rule).read(
        "I: epoch 0, 10 of 20: loss=0.5, top1=61.2%",
        "450it [00:10, 45.2it/s]",
        "I: epoch 0, 20 of 20: loss=inf, top1=?",
        "I: epoch 1, 10 of 20: loss=4e-1; top1=70%",
    )
    assert _told(found, "step", "totalSteps", "epoch", "loss") == [
        (10, 20, 0, 0.5),
        (20, 20, 0, None),
        (30, 40, 1, 0.4),
    ]
    assert [report.get("metrics") for report in found] == [{"top1": 61.2}, None, {"top1": 70.0}]
    assert found[1]["notFinite"] == {"loss": "Infinity"}


def test_a_rule_without_steps_counts_them() -> None:
    """`samples` and `rate` are of all ranks, as they are printed."""
    found = Reader(r"(?P<samples>\d+) rows", ranks=4).read("8 rows", "9 rows")
    assert _told(found, "step", "samples", "unit") == [(1, 8, "samples"), (2, 9, "samples")]
    found = Reader(r"(?P<rate>[\d.]+) tok/s", ranks=4).read("12.5 tok/s", "13.5 tok/s")
    assert _told(found, "step", "samples") == [(1, None), (2, 13.5)]


def test_the_lowest_rank_that_prints_speaks() -> None:
    """A lower rank that begins later replaces the current one; in an elastic world, another rank replaces one that is
    lost."""
    for elastic in (False, True):
        reader = Reader(elastic=elastic)
        line = "450it [00:10, 45.2it/s]"
        assert [bool(reader.read(line, rank=rank)) for rank in (2, 3, 1, 2)] == [True, False, True, False]
        reader.printed.ended(1)
        assert bool(reader.read("500it [00:11, 45.2it/s]", rank=2)) is elastic


def test_reports_end_it() -> None:
    """Once a rank has reported a step itself, no lines are read; other reports of ranks do not end the reading."""
    reader = Reader()
    reader.printed.see_reports(
        b'{"step": 3, "time": 1.0, "startedFrom": "/c"}\n{"step": 0, "time": 1.0, "about": {}}\n'
    )
    assert reader.read("450it [00:10, 45.2it/s]")
    reader.printed.see_reports(b'{"step": 4, "time": 1.0}\n')
    assert not reader.read("500it [00:10, 45.2it/s]")


def test_a_flood_is_thinned() -> None:
    """Reports are fewer than lines, and lose no samples."""
    reader = Reader(r"(?P<samples>\d+) rows of step (?P<step>\d+)")
    data = "".join(f"2 rows of step {step}\n" for step in range(1, 5001)).encode()
    reports = [json.loads(line) for line in reader.printed.read(0, data).splitlines()]
    assert len(reports) == 1000
    (last,) = reader.read("2 rows of step 5001")
    assert sum(report["samples"] for report in reports) + last["samples"] == 2 * 5001


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (r"1=(?P<b>\d+)|(x+x+)+[yz](?P<a>\d)", "x" * 300 + "y"),
        (r"a.*b.*c.*(?P<a>\d)z|1=(?P<b>\d+)", "abc" * 320),
    ],
    ids=["exponential", "polynomial"],
)
def test_a_slow_rule_is_off(rule: str, line: str, caplog: pytest.LogCaptureFixture) -> None:
    """The rule is disabled at the first line that takes too long, even if matching would never end; the log names the
    rule."""
    reader = Reader(rule)
    assert reader.read("1=2")
    reader.read(line)
    assert f"stopped reading metrics from lines: the regular expression {rule!r} took more than 0.1 s" in caplog.text
    assert not reader.read("1=2")


_PRINTED = re.compile(
    rb"(Epoch \d+/\d+|\d+/\d+ -* ?\d+s \d+ms/step - loss: \S+|total \w+/sec: \d+|\d+\timages/sec: [\d.e+-]{1,9}|"
    rb"\d+%\|#* *\| \d+/\d+ \[00:01<00:02, .{1,5}it/s\])[\r\n]?"
)


@given(st.lists(st.one_of(st.binary(max_size=80), st.from_regex(_PRINTED, fullmatch=True)), max_size=30))
@example([b"0/sec: -1"])
def test_any_line(parts: list[bytes]) -> None:
    """From any output only reports are read that the launcher accepts."""
    printed = PrintedReports("", 2)
    for data in (b"\n".join(parts), b"".join(parts)):
        for line in printed.read(0, data).splitlines():
            parse_report(line)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("step (", "is no valid regular expression at character 6"),
        ("(?P<1>x)", "is no valid regular expression at character 5"),
        (r"step (\d+)", "has no named group; expected some, such as 'step (?P<step>"),
        ("(?P<a>" + "x" * 1000 + ")", "has 1007 characters; expected at most 1000"),
    ],
    ids=["open", "bad-name", "unnamed", "long"],
)
def test_what_is_no_rule(rule: str, says: str) -> None:
    """The error describes the problem."""
    assert says in metrics_rule_problem(rule)
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        PrintedReports(rule, 1)


@pytest.mark.parametrize(
    "rule",
    [
        "none",
        r"(?i)loss[=(:] ?(?P<loss>\d+(?:\.\d+)?(?:e-?\d+)?)",
        r"(?P<a>(x+)+y)",
    ],
)
def test_rules(rule: str) -> None:
    assert metrics_rule_problem(rule) == ""


def test_whose_reports_count() -> None:
    """Reports of ranks count; before the first of them, lines of the lowest rank and its newest series count."""
    voice = PrintedReportsChoice()
    heard = [
        voice.choose(rank, {"printed": series}) for rank, series in ((2, 1), (2, 1), (3, 1), (0, 1), (2, 2), (0, 2))
    ]
    assert heard == [(True, True), (True, False), (False, False), (True, True), (False, False), (True, True)]
    assert [voice.choose(5, {}), voice.choose(1, {}), voice.choose(0, {"printed": 9})] == [
        (True, True),
        (True, False),
        (False, False),
    ]


def test_another_rank_goes_on_where_the_one_that_spoke_is_gone() -> None:
    """Progress of the previous rank still counts."""
    voice = PrintedReportsChoice()
    assert voice.choose(0, {"printed": 1}) == (True, True)
    voice.keep([1, 2])
    assert voice.choose(1, {"printed": 1}) == (True, False)
