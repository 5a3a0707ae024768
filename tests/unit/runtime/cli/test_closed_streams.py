"""Commands whose caller has closed stdin, stdout or stderr."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-c", "from ringtrain_job.cli.entry import ringtrain; ringtrain()"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_like_dev_null(closed: str, tmp_path: Path) -> None:
    """The command runs as with /dev/null, also the ranks that it starts."""
    script = 'exec "$@" ' + closed
    words = [*RUN, "run", "-np", "1", "--name", "x", "sh", "-c", "echo here; echo there >&2"]
    done = subprocess.run(["sh", "-c", script, "sh", *words], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done
    assert (tmp_path / "runs/local/x/1/job.log").read_bytes().count(b"here") == 2
    listed = subprocess.run(["sh", "-c", script, "sh", *RUN, "list"], cwd=tmp_path, capture_output=True, check=False)
    assert (listed.returncode, listed.stderr) == (0, b"")
