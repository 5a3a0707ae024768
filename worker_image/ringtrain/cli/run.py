"""`ringtrain run -np N CMD…`: launcher, agent and ranks as processes of this machine."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from ringtrain import contract
from ringtrain.agent.processes import die_with_parent
from ringtrain.cli.failures import exit_code_of
from ringtrain.cli.main import log_to_stderr
from ringtrain.control.ports import HeldPorts

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", socket.gethostname()})
_POLL_S = 0.2
# The launcher is gone: its agent has its own deadlines, and this long beyond a rank's grace to keep them.
_AGENT_S = 30.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-np", "-n", "ranks", type=click.IntRange(1, 1024), required=True, help="How many ranks to start.")
@click.option("-H", "--hosts", default="", metavar="localhost:N", help="Where; this machine is all there is.")
@click.option(
    "--log-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True
)
@click.option("--name", help="Directory of this run under the log directory [default: command and time].")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(ranks: int, hosts: str, log_dir: Path, name: str | None, command: tuple[str, ...]) -> None:
    """Run COMMAND as N ranks on this machine, with one merged log.

    Ends with the exit status of the first rank that failed, else 0.
    """
    check_hosts(hosts, ranks)
    log_to_stderr("run")
    job = name or f"{_program(command)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    sys.exit(exit_code_of(lambda: _run(ranks, log_dir.resolve(), job, command)))


def check_hosts(hosts: str, ranks: int) -> None:
    """Raise a usage error unless `hosts` (`host:slots,…`, may be empty) is this machine with room for `ranks`."""
    slots = 0
    for entry in filter(None, hosts.split(",")):
        host, _, count = entry.strip().partition(":")
        if host not in _LOCAL:
            raise click.UsageError(
                f"-H {hosts}: {host} is not this machine, and `ringtrain run` starts processes here only. "
                "To train on several hosts, submit a DistributedTrainingJob (dtj submit job.yaml)."
            )
        if count and not count.isdecimal():
            raise click.UsageError(f"-H {hosts}: {count!r} is not a number of slots; expected {host}:{ranks}")
        slots += int(count or 1)
    if hosts and slots < ranks:
        raise click.UsageError(f"-H {hosts}: {slots} slots for {ranks} ranks; expected localhost:{ranks}")


def _program(command: Sequence[str]) -> str:
    """A name for a run: the script, else the program."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return Path(script).stem


def _run(ranks: int, log_dir: Path, job: str, command: Sequence[str]) -> int:
    with ExitStack() as stack:
        secret_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-")))
        (secret_dir / "token").write_text(secrets.token_hex(32))
        held = HeldPorts()
        stack.callback(held.release)
        control_port, status_port = held.take(0, 2)
        environment = {
            **os.environ,
            **_environment(ranks, log_dir, job, secret_dir),
            contract.ENV_LAUNCHER_PORT: str(control_port),
            contract.ENV_STATUS_PORT: str(status_port),
            contract.ENV_LAUNCHER_ADDRESS: f"127.0.0.1:{control_port}",
        }
        held.release()
        launcher = _start(stack, contract.ROLE_LAUNCHER, environment, ["launcher"])
        agent = _start(stack, contract.ROLE_WORKER, environment, ["agent", "--", *command])
        signals = _forward_signals(stack, launcher)
        code = _wait(launcher, agent)
        click.echo(f"logs: {log_dir / 'local' / job / '1'}", err=True)
        return 128 + signals[0] if signals else code


def _environment(ranks: int, log_dir: Path, job: str, secret_dir: Path) -> dict[str, str]:
    return {
        contract.ENV_JOB_NAME: job,
        contract.ENV_JOB_NAMESPACE: "local",
        contract.ENV_JOB_UID: str(uuid.uuid4()),
        contract.ENV_ATTEMPT: "1",
        contract.ENV_BACKEND: "ring",
        contract.ENV_NUM_WORKERS: "1",
        contract.ENV_SLOTS_PER_WORKER: str(ranks),
        contract.ENV_WORKER_INDEX: "0",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"{job}-worker-0",
        contract.ENV_POD_IP: "127.0.0.1",
        contract.ENV_SECRET_DIR: str(secret_dir),
        contract.ENV_LOG_DIR: str(log_dir),
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }


def _start(
    stack: ExitStack, role: str, environment: dict[str, str], words: list[str]
) -> "subprocess.Popen[bytes]":
    """A `ringtrain` process that ends when this one does. In a session of its own: Ctrl-C is ours to pass on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ringtrain", *words],
        env={**environment, contract.ENV_ROLE: role},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
    )

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)
    return process


def _forward_signals(stack: ExitStack, launcher: "subprocess.Popen[bytes]") -> list[int]:
    """Pass SIGINT and SIGTERM to the launcher, which stops the gang; returns the list they are noted in."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        launcher.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        stack.callback(signal.signal, number, signal.signal(number, forward))
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
