"""Command `dtj tensorboard JOB`: show what the job's ranks report (loss, metrics) in a TensorBoard on this machine."""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import click

from ringtrain_operator.reporting import errors_reported

from ..jobs.cluster_logs import read_reports
from ..local.past_runs import newest_run
from .session import ClusterAccess, ClusterOptions, job_argument, local_or_cluster_options, runs_folder, with_session

# The runtime's program, which writes TensorBoard's files.
_PROGRAM = "ringtrain"


@click.command()
@job_argument
@click.option(
    "--attempt", type=click.IntRange(min=1), default=None, help="Number of the attempt; default: the current one."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=6006,
    show_default=True,
    help="Port of TensorBoard on this machine.",
)
@local_or_cluster_options
def tensorboard(name: str, attempt: int | None, port: int, cluster: ClusterOptions | None) -> None:
    """Show loss and metrics of each rank in a TensorBoard on this machine until Ctrl-C.

    While the launcher runs, reports are read in its pod; you need the right to exec in that pod. Later they are read
    from the claim of spec.logs. Install 'ringtrain[tensorboard]' with pip on this machine; the job's image needs
    nothing.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise click.ClickException("the runtime is not installed on this machine: pip install 'ringtrain[tensorboard]'")
    command = [program, "tensorboard", f"--port={port}"]
    if cluster is None:
        with errors_reported():
            log = newest_run(runs_folder(), name).log(None, attempt)
        sys.exit(subprocess.run([*command, str(log.parent)], check=False).returncode)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends the server, too

    async def work(session: ClusterAccess) -> int:
        return await _show_tensorboard(session, name, attempt, command)

    sys.exit(with_session(cluster, work))


async def _copy_event_files(chunks: AsyncGenerator[bytes, None], write: Callable[[bytes], object]) -> None:
    async for chunk in chunks:
        write(chunk)


async def _show_tensorboard(session: ClusterAccess, name: str, attempt: int | None, command: list[str]) -> int:
    """Copy the ranks' reports into a folder and run `command` (`ringtrain tensorboard`) there. Return its exit code."""
    with tempfile.TemporaryDirectory(prefix="dtj-") as folder:
        directory = Path(folder) / session.namespace / name / str(attempt or 1)
        directory.mkdir(parents=True)
        (directory / "job.log").touch()
        with (directory / "metrics.jsonl").open("wb", buffering=0) as file:
            async with aclosing(read_reports(session, name, attempt)) as chunks:
                first = await anext(chunks, b"")  # errors are raised before the server starts
                file.write(first)
                server = await asyncio.create_subprocess_exec(*command, str(directory))
                try:
                    ended = asyncio.create_task(server.wait())
                    copying = asyncio.create_task(_copy_event_files(chunks, file.write))
                    await asyncio.wait((ended, copying), return_when=asyncio.FIRST_COMPLETED)
                    if not ended.done():
                        copying.result()
                    return await ended
                finally:
                    copying.cancel()
                    await asyncio.gather(copying, return_exceptions=True)
                    if server.returncode is None:
                        server.terminate()
                        await server.wait()
