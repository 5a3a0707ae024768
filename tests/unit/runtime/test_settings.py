"""Settings that are declared: what is read, what counts where nothing is set, and what is said of a wrong value."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ringtrain.errors import ConfigurationError
from ringtrain.shared.settings import (
    REQUIRED,
    Settings,
    address,
    choice,
    flag,
    integer,
    part,
    path,
    seconds,
    setting,
    switch,
    text,
)


@dataclass(frozen=True, kw_only=True)
class Waits(Settings):
    timeout_s: float = seconds("T_TIMEOUT", 60.0)
    stall_s: float = seconds("T_STALL", 600.0, lambda seen: max(600.0, seen.timeout_s))
    grace_s: float = seconds("T_GRACE", 30.0, zero=True)


@dataclass(frozen=True, kw_only=True)
class Sample(Settings):
    workers: int = integer("T_WORKERS", low=1, high=9)
    index: int = integer("T_INDEX", 0, low=0, high=lambda seen: seen.workers - 1)
    name: str = text("T_NAME", derived=lambda seen: f"{seen.job}-{seen.index}")
    launcher: str = address("T_LAUNCHER", "")
    uid: str = text("T_UID", derived=lambda seen: REQUIRED if seen.launcher else "none")
    kind: str = choice("T_KIND", ("ring", "mpi"), "ring")
    needs_init: bool | None = flag("T_INIT", None)
    is_quiet: bool = switch("T_QUIET")
    file: Path | None = path("T_FILE")
    token: str | None = setting(lambda env, _: env.unchanged("T_TOKEN"), None, is_secret=True)
    waits: Waits = part(Waits)
    own: str = "no variable"

    def check(self) -> None:
        if self.kind == "mpi" and self.workers == 9:
            raise ConfigurationError("T_KIND=mpi with 9 workers")


def read(**variables: str) -> Sample:
    return Sample.from_env({f"T_{name}": value for name, value in variables.items()}, job="digits")


def test_defaults_are_of_the_class_of_what_was_read_before_and_of_what_is_known() -> None:
    found = read(WORKERS="3", INDEX="2", NAME="", TOKEN="")
    assert (found.name, found.uid, found.kind, found.own) == ("digits-2", "none", "ring", "no variable")
    assert (found.needs_init, found.is_quiet, found.file, found.token) == (None, False, None, "")
    assert found.waits == Waits()
    assert read(WORKERS="1", TIMEOUT="700").waits == Waits(timeout_s=700.0, stall_s=700.0)


def test_what_is_set_is_read() -> None:
    found = read(WORKERS="1", INIT="0", QUIET="1", FILE="/f", TOKEN="hidden", GRACE="0", LAUNCHER="a:1", UID="u")
    assert (found.needs_init, found.is_quiet, found.file, found.waits.grace_s) == (False, True, Path("/f"), 0.0)
    assert (found.launcher, found.uid, found.token) == ("a:1", "u", "hidden")
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "T_WORKERS is not set"),
        ({"WORKERS": "10"}, "T_WORKERS='10': expected an integer from 1 to 9"),
        ({"WORKERS": "3", "INDEX": "3"}, "T_INDEX='3': expected an integer from 0 to 2"),
        ({"WORKERS": "1", "LAUNCHER": "a:1"}, "T_UID is not set"),
        ({"WORKERS": "1", "KIND": "x"}, "T_KIND='x': expected one of ring, mpi"),
        ({"WORKERS": "1", "INIT": "yes"}, "T_INIT='yes': expected one of 0, 1"),
        ({"WORKERS": "1", "TIMEOUT": "0"}, "T_TIMEOUT='0': expected seconds above 0"),
        ({"WORKERS": "1", "GRACE": "-1"}, "T_GRACE='-1': expected seconds from 0"),
        ({"WORKERS": "9", "KIND": "mpi"}, "T_KIND=mpi with 9 workers"),
    ],
)
def test_the_first_wrong_variable_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        read(**variables)
    assert message in str(wrong.value)
