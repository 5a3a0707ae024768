"""Runs over several fixed hosts: a launcher on this machine, an agent on each host, TLS between them."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ringtrain.errors import counted
from ringtrain.shared import contract
from ringtrain.shared.address import loopback_address
from ringtrain.shared.hosts import Host
from ringtrain_hosts.remote_agent import RemoteAgentGreeting
from ringtrain_hosts.ssh import (
    HostDeadlines,
    SrunOptions,
    SshAgentOrders,
    SshOptions,
    SshRemoteAgent,
    connect_ssh_hosts,
)
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.cli.certificates import write_secrets
from ringtrain_job.cli.ending import print_line
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    environment_without_token,
    forward_run_signals,
    level_of,
    prepare_run,
    read_lost_lines,
    run_exit_code,
    start_launcher,
    start_run_process,
    wait_for_run_processes,
)


def run_on_hosts(
    hosts: Sequence[Host],
    options: SshOptions | SrunOptions,
    settings: Mapping[str, str],
    command: Sequence[str],
    verbose: bool,
) -> int:
    """Run `command` on all `hosts`, with the launcher on this machine; return the run's exit code.

    `settings`: environment variables of launcher and agents. `verbose`: whether to log messages of level info too.
    Raises ConfigurationError with the host that cannot be used, before any rank is started.
    """
    with ExitStack() as stack:
        sites = ",".join(host.site for host in hosts).strip(",")
        if sites:
            encrypt = {} if os.environ.get(contract.ENV_ENCRYPT) else {contract.ENV_ENCRYPT: "sites"}
            settings = {**settings, contract.ENV_WORKER_SITES: sites, **encrypt}
        environment = prepare_hosts(stack, settings, len(hosts), hosts[0].slots)
        secrets = Path(environment[contract.ENV_RUN_FOLDER])
        control_port = int(environment[contract.ENV_LAUNCHER_PORT])
        level = level_of(environment, verbose)
        config = AgentConfig.from_env(environment)
        others = [host for host in hosts if not host.is_here]
        deadlines = HostDeadlines(config.start_timeout_s, config.timeout_s, config.save_s + AGENT_S)
        reached = connect_ssh_hosts(stack, others, options, deadlines)
        run = SshAgentOrders(
            environment_without_token(environment), secrets, control_port, options.interfaces, level, command
        )
        launcher = start_launcher(stack, environment, level)
        agents = _start_agents(stack, run, hosts, reached)
        start_end = time.monotonic() + config.start_timeout_s
        for agent, _ in reached:
            agent.started(start_end)
        ranks = f"{counted(config.world_size, 'rank')} on {counted(len(hosts), 'host')}"
        signals = forward_run_signals(stack, launcher, ranks, config.save_s)
        # The launcher detects a lost agent after a quarter of the timeout, then stops the others.
        code = wait_for_run_processes(launcher, agents, 2 * config.timeout_s + AGENT_S)
        _print_failed_agents([agent for agent, _ in reached])
        lost = read_lost_lines(_termination_file(run)) + sum(agent.lost_lines() for agent, _ in reached)
        return run_exit_code(code, lost, environment[contract.ENV_LOG_DIR], signals)


def prepare_hosts(stack: ExitStack, settings: Mapping[str, str], workers: int, slots: int) -> dict[str, str]:
    """Call `prepare_run` for `workers` agents, and create their secrets; return the launcher's environment."""

    def write(folder: Path) -> Path:
        write_secrets(folder, settings[contract.ENV_JOB_UID])
        return folder / contract.ROLE_LAUNCHER

    size = {contract.ENV_NUM_WORKERS: str(workers), contract.ENV_SLOTS_PER_WORKER: str(slots)}
    return prepare_run(stack, {**settings, **size}, write)


def _start_agents(
    stack: ExitStack,
    run: SshAgentOrders,
    hosts: Sequence[Host],
    reached: Sequence[tuple[SshRemoteAgent, RemoteAgentGreeting]],
) -> "list[subprocess.Popen[bytes]]":
    others = iter(reached)
    agents = []
    for index, host in enumerate(hosts):
        agent, greeting = reached[0] if host.is_here else next(others)
        address = run.run_address(agent.host.name, greeting.run_address)
        if host.is_here:
            agents.append(_start_agent_here(stack, run, index, host.name, address))
        else:
            agent.start(run.order(run.agent_environment(index, host.name, address)))
            agents.append(agent.process)
    return agents


def _start_agent_here(
    stack: ExitStack, run: SshAgentOrders, index: int, name: str, run_address: str
) -> "subprocess.Popen[bytes]":
    environment = {
        **run.agent_environment(index, name, loopback_address()),
        contract.ENV_SECRET_DIR: str(run.secrets / contract.ROLE_WORKER),
        contract.ENV_POD_IP: run_address,
        contract.ENV_TERMINATION_MESSAGE_PATH: str(_termination_file(run)),
    }
    return start_run_process(
        stack, contract.ROLE_WORKER, environment, ["agent", "--log-level", run.level, "--", *run.command]
    )


def _termination_file(run: SshAgentOrders) -> Path:
    """Return the path to which this machine's agent writes its termination message."""
    return run.secrets / "ended.json"


def _print_failed_agents(agents: Sequence[SshRemoteAgent]) -> None:
    """Print exit code and last line of each agent that failed."""
    for agent in agents:
        code = agent.process.poll()
        if code not in (None, 0, contract.EXIT_GANG_STOPPED):
            print_line(f"host {agent.host.name}: its agent ended with {code}: {agent.last_line()}")
