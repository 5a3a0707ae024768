"""What a killed agent leaves in shared memory is removed, and nothing else."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from ringtrain.agent.mpi.shared_memory import make_directory


def _agent(place: Path, pipe: Connection) -> None:
    pipe.send(make_directory(place))
    signal.pause()


def test_a_killed_agents_directory_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """That of an agent which lives stays, and so does what was not made here."""
    context = multiprocessing.get_context("forkserver")
    (tmp_path / "ringtrain-mpi-being-made").mkdir()
    (tmp_path / "of-another-program").mkdir()
    ours, theirs = context.Pipe()
    agents = [context.Process(target=_agent, args=(tmp_path, theirs), daemon=True) for _ in range(2)]
    made = []
    for agent in agents:
        agent.start()
        assert ours.poll(60)
        made.append(ours.recv())
    os.kill(agents[0].pid or 0, signal.SIGKILL)
    agents[0].join(60)
    own = make_directory(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    agents[1].kill()
    agents[1].join(60)
    assert left == {own.name, made[1].name, "ringtrain-mpi-being-made", "of-another-program"}
