"""`ringtrain run` says at once that logs cannot be kept where they should."""

from pathlib import Path

import click
import pytest

from ringtrain_job.cli.run import check_log_dir


def test_a_log_directory_is_made(tmp_path: Path) -> None:
    """And nothing is left in it."""
    check_log_dir(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_log_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names the option, the directory and the way out."""
    (tmp_path / "file").touch()
    with pytest.raises(click.UsageError, match=r"--runs .*file/logs: cannot write logs to this folder \(Not a dir"):
        check_log_dir(tmp_path / "file" / "logs")
