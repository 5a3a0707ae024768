"""Entry points of a job's pods: `ringtrain agent -- CMD…`, `launcher [-- CMD…]`, `data-worker`."""

import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points

import click

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import OUR_LOG_LEVELS
from ringtrain_job.cli.main import log_to_stderr


def _only_in_pods(body: Callable[..., None]) -> click.Command:
    """`body` as a command that people do not call, of a log level and the words of another command."""
    level = click.Choice(OUR_LOG_LEVELS)
    body = click.argument("command", nargs=-1, type=click.UNPROCESSED)(body)
    body = click.option("--log-level", type=level, default="info", show_default=True)(body)
    return click.command(hidden=True, context_settings={"ignore_unknown_options": True})(body)


def _exit_with_pod_code(role: str, log_level: str, run: Callable[[], int]) -> None:
    # Ranks and mpirun are forked from a process in which gRPC runs, whose fork handlers wait for our threads or
    # abort the child. gRPC looks here when it is loaded, which no import above does.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each handshake of a stranger that fails is a line
    tempfile.tempdir = os.environ.get(contract.ENV_RUN_FOLDER) or None  # this process's; ranks have the user's
    log_to_stderr(role, log_level)
    from ringtrain_job.cli.failures import exit_code_of

    sys.exit(exit_code_of(run))


@_only_in_pods
def agent(log_level: str, command: tuple[str, ...]) -> None:
    """Join the job's launcher, run COMMAND as this worker's ranks, and ship what they write.

    Everything else comes from RINGTRAIN_* variables, see docs/contract.md.
    """
    inherited = dict(os.environ)

    def run() -> int:
        from ringtrain_job.agent.config import AgentConfig
        from ringtrain_job.agent.main import run_agent

        return run_agent(AgentConfig.from_env(inherited), command, inherited)

    _exit_with_pod_code("agent", log_level, run)


@click.option("--hosts", help="File about the hosts of a `ringtrain run` that may change.")
@click.option("--slots-per-host", type=int, default=1, help="Of a discovery script's line without a number.")
@_only_in_pods
def launcher(log_level: str, command: tuple[str, ...], hosts: str | None, slots_per_host: int) -> None:
    """Bring the job's workers together, keep their logs, and end with the job's exit code.

    A ring job's workers run the training command; COMMAND is for backends whose launcher runs one.
    Everything else comes from RINGTRAIN_* variables, see docs/contract.md.
    """
    inherited = dict(os.environ)

    def run() -> int:
        from ringtrain_job.launcher.config import LauncherConfig
        from ringtrain_job.launcher.hosts import HostControl
        from ringtrain_job.launcher.main import run_launcher

        config = LauncherConfig.from_env(inherited)
        if hosts is None:
            return run_launcher(config, command, HostControl(slots_per_host=slots_per_host))
        from ringtrain_job.cli.elastic_hosts import SshHostAgents, read_hosts_plan

        plan = read_hosts_plan(hosts)
        agents = SshHostAgents(plan, inherited)
        try:
            return run_launcher(config, command, HostControl(agents, slots_per_host, plan["sites"]))
        finally:
            agents.close()

    _exit_with_pod_code("launcher", log_level, run)


@click.command("data-worker", hidden=True)
@click.option("--log-level", type=click.Choice(OUR_LOG_LEVELS), default="info", show_default=True)
def data_worker(log_level: str) -> None:
    """Load batches for the job's ranks until it is told to stop.

    Everything comes from RINGTRAIN_* variables, see docs/contract.md. Without RINGTRAIN_LAUNCHER_ADDRESS it serves
    whoever names it in a file of data workers.
    """

    def run() -> int:
        kind = os.environ.get(contract.ENV_DATA_KIND) or contract.DATA_KINDS[0]
        kinds = {point.name: point for point in entry_points(group="ringtrain.data.workers")}
        if kind not in kinds:
            raise ConfigurationError(
                f"{contract.ENV_DATA_KIND} is {shown(kind)}, and this image has data workers of "
                f"{' and '.join(sorted(kinds)) or 'no kind'}; pip install 'ringtrain[data-service]' in the image"
            )
        return int(kinds[kind].load()(os.environ))

    _exit_with_pod_code("data", log_level, run)
