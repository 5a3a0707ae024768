"""`ringtrain launcher [-- CMD…]`: the job's coordinator."""

import os
import sys

import click

from ringtrain.cli.failures import exit_code_of
from ringtrain.cli.main import log_to_stderr


@click.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.option("--log-level", type=click.Choice(["info", "warning"]), default="info", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def launcher(log_level: str, command: tuple[str, ...]) -> None:
    """Bring the job's workers together, keep their logs, and end with the job's exit code.

    A ring job's workers run the training command; COMMAND is for backends whose launcher runs one.
    Everything else comes from RINGTRAIN_* variables, see docs/contract.md.
    """
    # mpirun is forked from a process in which gRPC runs; its fork handlers would wait for threads of ours.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each handshake of a stranger that fails is a line
    log_to_stderr("launcher", log_level)

    def body() -> int:
        from ringtrain.launcher.config import LauncherConfig
        from ringtrain.launcher.main import run_launcher

        return run_launcher(LauncherConfig.from_env(os.environ), command)

    sys.exit(exit_code_of(body))
