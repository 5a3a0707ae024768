"""`ringtrain run -np N CMD…`: launcher, agent and ranks as processes of this machine."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from ringtrain import contract
from ringtrain.agent.config import AgentConfig
from ringtrain.cli.checks import check_command, check_log_dir, check_name
from ringtrain.cli.elastic import ElasticOptions, elastic_options, elastic_run
from ringtrain.cli.ending import say, say_end
from ringtrain.cli.failures import exit_code_of
from ringtrain.cli.horovod_values import HorovodValues, horovod_options
from ringtrain.cli.hosts import Host, find_hosts
from ringtrain.cli.main import log_to_stderr
from ringtrain.control.ports import HeldPorts
from ringtrain.logs.layout import AttemptFiles
from ringtrain.logs.reading import read_outcome
from ringtrain.processes import signal_handler, start_child
from ringtrain.world.horovod_variables import log_level, with_counterparts

_POLL_S = 0.2
# Between the log directory and a job's name in it, where a cluster has its namespaces.
NAMESPACE = "local"
# What this process must not hand on when it is itself a rank of an elastic run.
_OF_AN_ELASTIC_RUN = frozenset(
    {
        *(contract.ENV_ELASTIC, contract.ENV_HOST_DISCOVERY_SCRIPT, contract.ENV_AGENT_SOCKET),
        *(contract.ENV_FORMATION, contract.ENV_SLOT),
    }
)
# The launcher is gone: its agent has its own deadlines, and this long beyond a rank's grace to keep them.
_AGENT_S = 30.0


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    *("-np", "-n", "--np", "--num-proc", "ranks"),
    type=click.IntRange(1, 1024),
    required=True,
    help="How many ranks to start.",
)
@click.option("-H", "--hosts", default="", metavar="localhost:N", help="Where; this machine is all there is.")
@horovod_options
@elastic_options
@click.option(
    "--log-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True
)
@click.option("--name", help="Directory of this run under the log directory [default: command and time].")
@click.option("--verbose", "-v", is_flag=True, help="Say what launcher and agent do, too.")
@click.option("--quiet", "-q", is_flag=True, help="Print what ranks write and why the job failed, nothing else.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int,
    hosts: str,
    horovod: HorovodValues,
    elastic: ElasticOptions,
    log_dir: Path,
    name: str | None,
    verbose: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as N ranks on this machine, with one merged log.

    Lines of progress name the speed of all ranks together, its standard error (+/-), and how far the speeds of
    single steps scatter around their median (jitter).

    With --min-np, --max-np or --host-discovery-script the run is elastic: a lost rank is replaced, and the number
    of ranks may change while the others go on. The program uses ringtrain.elastic for that; any other needs
    --on-loss Restart. Lines of an elastic run begin with the rank's slot, which stays, where its rank may change.

    Options stand before COMMAND; those behind it are COMMAND's own. Ends with the exit status of the first rank
    that failed, else 0.
    """
    world = elastic_run(ranks, hosts, elastic)
    slots = ranks if world is None else world.slots
    check_here(find_hosts(hosts, horovod.of("hostfile"), slots))
    check_name(name)
    check_command(command[0], os.environ.get("PATH", os.defpath))
    check_log_dir(log_dir)
    log_to_stderr("run")
    job = name or f"{_program(command)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    files = AttemptFiles.of(log_dir.resolve(), NAMESPACE, job, 1)
    horovod.link_outputs(files, slots)
    for note in () if quiet else horovod.notes:
        say(note)
    started = time.monotonic()
    settings = horovod.variables | ({} if world is None else world.variables)
    place = _environment(slots, log_dir.resolve(), job, settings)
    code = exit_code_of(lambda: _run(ranks, place, command, "info" if verbose else "warning"))
    if code or not quiet:
        say_end(files, read_outcome(files), time.monotonic() - started)
    sys.exit(code)


def check_here(hosts: Sequence[Host]) -> None:
    """Raise a usage error unless all hosts are this machine."""
    for host in hosts:
        if not host.is_here:
            raise click.UsageError(
                f"-H {host.name}:{host.slots}: {host.name} is not this machine, and `ringtrain run` starts "
                "processes here only. To train on several hosts, submit a DistributedTrainingJob "
                "(dtj submit job.yaml)."
            )


def _program(command: Sequence[str]) -> str:
    """A name for a run: the script, else the program."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", Path(script).stem)[:100] or "run"


def _run(ranks: int, settings: Mapping[str, str], command: Sequence[str], level: str) -> int:
    with ExitStack() as stack:
        secret_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-")))
        (secret_dir / "token").write_text(secrets.token_hex(32))
        held = HeldPorts()
        stack.callback(held.release)
        control_port, status_port = held.take(0, 2)
        outer = with_counterparts({**os.environ, **settings})
        level = _level(outer, level)
        environment = {
            **{name: value for name, value in outer.items() if name in settings or name not in _OF_AN_ELASTIC_RUN},
            contract.ENV_SECRET_DIR: str(secret_dir),
            contract.ENV_LAUNCHER_PORT: str(control_port),
            contract.ENV_STATUS_PORT: str(status_port),
            contract.ENV_LAUNCHER_ADDRESS: f"127.0.0.1:{control_port}",
        }
        held.share()
        grace_s = AgentConfig.from_env(environment).grace_s
        launcher = _start(
            stack,
            contract.ROLE_LAUNCHER,
            {**environment, contract.ENV_PORTS_HELD: "1"},
            ["launcher", "--log-level", level],
        )
        agent = _start(stack, contract.ROLE_WORKER, environment, ["agent", "--log-level", level, "--", *command])
        # SIGTERM tells an elastic job's launcher that its own pod goes, and that the ranks are to live on.
        stop = signal.SIGINT if contract.ENV_ELASTIC in environment else signal.SIGTERM
        signals = _forward_signals(
            stack, lambda: launcher.send_signal(stop), f"{ranks} ranks" if ranks > 1 else "1 rank", grace_s
        )
        code = _wait(launcher, agent)
        return 128 + signals[0] if signals else code


def _level(environment: Mapping[str, str], default: str) -> str:
    """From which level on launcher and agent say what they do."""
    asked = environment.get(contract.ENV_LOG_LEVEL)
    return log_level(contract.ENV_LOG_LEVEL, asked) if asked else default


def _environment(slots: int, log_dir: Path, job: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        **settings,
        contract.ENV_JOB_NAME: job,
        contract.ENV_JOB_NAMESPACE: NAMESPACE,
        contract.ENV_JOB_UID: str(uuid.uuid4()),
        contract.ENV_ATTEMPT: "1",
        contract.ENV_BACKEND: "ring",
        contract.ENV_NUM_WORKERS: "1",
        contract.ENV_SLOTS_PER_WORKER: str(slots),
        contract.ENV_WORKER_INDEX: "0",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"{job}-worker-0",
        contract.ENV_POD_IP: "127.0.0.1",
        contract.ENV_LOG_DIR: str(log_dir),
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }


def _start(
    stack: ExitStack, role: str, environment: dict[str, str], words: list[str]
) -> "subprocess.Popen[bytes]":
    """A `ringtrain` process that ends when this one does. In a session of its own: Ctrl-C is ours to pass on."""
    command = [sys.executable, "-m", "ringtrain", *words]
    process = start_child(command, {**environment, contract.ENV_ROLE: role})

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)
    return process


def _forward_signals(stack: ExitStack, stop: Callable[[], None], ranks: str, grace_s: float) -> list[int]:
    """On SIGINT and SIGTERM `stop` the launcher, which stops the gang; returns the list they are noted in."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        if len(received) == 1:
            say(f"stopping: waiting for {ranks} to end, for at most {grace_s:.0f} s; once more: at once")
        else:
            say("stopping: ranks are killed")
        stop()

    stack.enter_context(signal_handler(forward, signal.SIGINT, signal.SIGTERM))
    return received


def _wait(launcher: "subprocess.Popen[bytes]", agent: "subprocess.Popen[bytes]") -> int:
    """Wait for both; the launcher's code counts, unless the agent ended before the launcher could know of it."""
    while launcher.poll() is None:
        if agent.poll() is not None:
            return _wait_after(agent.returncode, launcher)
        time.sleep(_POLL_S)
    try:
        agent.wait(_AGENT_S)
    except subprocess.TimeoutExpired:
        agent.kill()
    return _code(launcher.returncode)


def _wait_after(agent_code: int, launcher: "subprocess.Popen[bytes]") -> int:
    """The agent has ended first. That is in order when it was released; else the launcher names what was lost."""
    try:
        return _code(launcher.wait(_AGENT_S))
    except subprocess.TimeoutExpired:
        launcher.terminate()
        return _code(agent_code)


def _code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode
