"""`ringtrain agent -- CMD…`: PID 1 of a worker pod."""

import os
import sys

import click

from ringtrain.cli.failures import exit_code_of
from ringtrain.cli.main import log_to_stderr


@click.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.option("--log-level", type=click.Choice(["info", "warning"]), default="info", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def agent(log_level: str, command: tuple[str, ...]) -> None:
    """Join the job's launcher, run COMMAND as this worker's ranks, and ship what they write.

    Everything else comes from RINGTRAIN_* variables, see docs/contract.md.
    """
    inherited = dict(os.environ)
    # Ranks are forked from a process in which gRPC runs; its fork handlers would wait for threads of ours.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each handshake of a stranger that fails is a line
    log_to_stderr("agent", log_level)

    def body() -> int:
        from ringtrain.agent.config import AgentConfig
        from ringtrain.agent.main import run_agent

        return run_agent(AgentConfig.from_env(inherited), command, inherited)

    sys.exit(exit_code_of(body))
