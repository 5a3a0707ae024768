"""Commands that a job's pods run: `ringtrain agent -- CMD…`, `launcher [-- CMD…]`, `data-worker`."""

import os
import sys
import tempfile
from collections.abc import Callable

import click

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import OUR_LOG_LEVELS
from ringtrain.shared.plugins import entry_points_of
from ringtrain_job.cli.main import log_to_stderr


def _pod_command(body: Callable[..., None]) -> click.Command:
    """Return `body` as a hidden click command with the option --log-level and the words of another command."""
    level = click.Choice(OUR_LOG_LEVELS)
    body = click.argument("command", nargs=-1, type=click.UNPROCESSED)(body)
    body = click.option("--log-level", type=level, default="info", show_default=True)(body)
    return click.command(hidden=True, context_settings={"ignore_unknown_options": True})(body)


def _run_and_exit(role: str, log_level: str, run: Callable[[], int]) -> None:
    # Ranks and mpirun are forked from this process. gRPC's fork handlers would wait for our threads or abort the
    # child. gRPC reads this variable when it is loaded, which none of the imports above does.
    """Set up logging and gRPC for the role `role`, call `run`, and exit with the code that it returns."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each failed handshake of an unknown peer logs a line
    tempfile.tempdir = os.environ.get(contract.ENV_RUN_FOLDER) or None  # for this process only; ranks use the user's
    log_to_stderr(role, log_level)
    from ringtrain_job.cli.failures import exit_code_of

    sys.exit(exit_code_of(run))


@_pod_command
def agent(log_level: str, command: tuple[str, ...]) -> None:
    """Register with the job's launcher, run COMMAND as this worker's ranks, and send their output.

    All other settings are RINGTRAIN_* variables, see docs/contract.md.
    """
    inherited = dict(os.environ)

    def run() -> int:
        from ringtrain_job.agent.config import AgentConfig
        from ringtrain_job.agent.main import run_agent

        return run_agent(AgentConfig.from_env(inherited), command, inherited)

    _run_and_exit("agent", log_level, run)


@click.option("--hosts", help="File that `ringtrain run` writes, with settings for hosts that may change.")
@click.option(
    "--slots-per-host", type=int, default=1, help="Slots of a host that the discovery script prints without a number."
)
@_pod_command
def launcher(log_level: str, command: tuple[str, ...], hosts: str | None, slots_per_host: int) -> None:
    """Coordinate the job's workers, store their logs, and exit with the job's exit code.

    A ring job's workers run the training command; COMMAND is for backends whose launcher runs one.
    All other settings are RINGTRAIN_* variables, see docs/contract.md.
    """
    inherited = dict(os.environ)

    def run() -> int:
        from ringtrain_job.launcher.config import LauncherConfig
        from ringtrain_job.launcher.main import run_launcher

        config = LauncherConfig.from_env(inherited)
        if config.elastic is None or not config.elastic.discovery_script:
            return run_launcher(config, command)
        (point,) = entry_points_of("ringtrain.launcher.hosts")
        with point.load()(hosts, inherited, slots_per_host) as run_hosts:
            return run_launcher(config, command, run_hosts)

    _run_and_exit("launcher", log_level, run)


@click.command("data-worker", hidden=True)
@click.option("--log-level", type=click.Choice(OUR_LOG_LEVELS), default="info", show_default=True)
def data_worker(log_level: str) -> None:
    """Load batches for the job's ranks until SIGTERM.

    All settings are RINGTRAIN_* variables, see docs/contract.md. Without RINGTRAIN_LAUNCHER_ADDRESS, ranks find this
    data worker by a file that the user writes.
    """

    def run() -> int:
        kind = os.environ.get(contract.ENV_DATA_KIND) or contract.DATA_KINDS[0]
        kinds = {point.name: point for point in entry_points_of("ringtrain.data.workers")}
        if kind not in kinds:
            raise ConfigurationError(
                f"{contract.ENV_DATA_KIND} is {shown(kind)}, but this image supports "
                f"{' and '.join(sorted(kinds)) or 'no kind'}; pip install 'ringtrain[data-service]' in the image"
            )
        return int(kinds[kind].load()(os.environ))

    _run_and_exit("data", log_level, run)
