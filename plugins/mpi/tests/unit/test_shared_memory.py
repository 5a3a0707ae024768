"""Only files of killed agents are removed from shared memory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringtrain_mpi.agent.worker import make_daemon_directory

# Says where its directory is, and lives until its input ends: the test's end ends it, too.
_AGENT = """
import sys
from pathlib import Path
from ringtrain_mpi.agent.worker import make_daemon_directory
print(make_daemon_directory(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@contextmanager
def _agent(place: Path) -> Iterator[Path]:
    """A process with a directory in `place`; it is killed at the end."""
    command = [sys.executable, "-c", _AGENT, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_killed_agents_directory_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Directories of running agents stay, and so do files of other programs."""
    (tmp_path / "ringtrain-mpi-being-made").mkdir()
    (tmp_path / "of-another-program").mkdir()
    with _agent(tmp_path) as living:
        with _agent(tmp_path) as killed:
            assert killed.is_dir()
        own = make_daemon_directory(tmp_path)
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {own.name, living.name, "ringtrain-mpi-being-made", "of-another-program"}
