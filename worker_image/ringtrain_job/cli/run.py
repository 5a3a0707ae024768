"""`ringtrain run -np N CMD…`: launcher, agents and ranks as processes of this machine, or of several."""

import os
import re
import secrets
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from ringtrain.shared import contract
from ringtrain.shared.hosts import Host
from ringtrain.shared.place import job_variables
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.cli.checks import (
    check_command,
    check_launcher,
    check_log_dir,
    check_metrics_option,
    check_name_option,
)
from ringtrain_job.cli.data_workers import start_data_workers
from ringtrain_job.cli.elastic import ElasticCommandOptions, elastic_options, elastic_run
from ringtrain_job.cli.elastic_hosts import run_on_changing_hosts
from ringtrain_job.cli.ending import say_end, say_ending_line
from ringtrain_job.cli.failures import exit_code_of
from ringtrain_job.cli.horovod_values import HorovodrunValues, horovod_options
from ringtrain_job.cli.hosts import allocated_hosts, find_hosts, given_hosts, note_on_tasks
from ringtrain_job.cli.main import log_to_stderr
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    environment_without_token,
    forward_run_signals,
    level_of,
    page_settings,
    prepare_run,
    run_exit_code,
    run_lost_lines,
    start_launcher,
    start_run_process,
    wait_for_run_processes,
)
from ringtrain_job.cli.several_hosts import run_on_hosts
from ringtrain_job.cli.ssh import SrunOptions
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import read_outcome

# Between the log directory and a job's name in it, where a cluster has its namespaces.
NAMESPACE = "local"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    *("-np", "-n", "--np", "--num-proc", "ranks"),
    type=click.IntRange(1, 1024),
    help="How many ranks to start [in a job of SLURM: its tasks].",
)
@click.option(
    *("-H", "--hosts"),
    default="",
    metavar="HOST:N,...",
    help="Where; others over ssh [default: here, or SLURM's nodes]. HOST:N@SITE,... says which hosts have a fast "
    "network among them. Maturity: Beta for other hosts, Experimental for sites.",
)
@horovod_options
@elastic_options
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True)
@click.option("--name", help="Directory of this run under the log directory [default: command and time].")
@click.option(
    *("--data-workers", "data_workers"),
    type=click.IntRange(0, 1024),
    default=0,
    help="Data workers beside the ranks, for ringtrain.data.service. Maturity: Beta.",
)
@click.option(
    "--fail-on-nan", is_flag=True, help="End the run when a rank reports a loss that is not finite (rt.report)."
)
@click.option(
    "--metrics",
    metavar="REGEX",
    help="Read steps, loss and metrics from printed lines that match, by named groups, in place of the forms that "
    "are known (tqdm, Keras, images/sec); none: from no line. rt.report comes first. Maturity: Beta.",
)
@click.option("--ui", is_flag=True, help="Serve the run as a page while it runs, and print its link.")
@click.option("--verbose", "-v", is_flag=True, help="Say what launcher and agent do, too.")
@click.option("--quiet", "-q", is_flag=True, help="Print what ranks write and why the job failed, nothing else.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int | None,
    hosts: str,
    horovod: HorovodrunValues,
    elastic: ElasticCommandOptions,
    log_dir: Path,
    name: str | None,
    data_workers: int,
    fail_on_nan: bool,
    metrics: str | None,
    ui: bool,
    verbose: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as N ranks, with one merged log.

    On a terminal the last line has the steps done, the time left and the speed of all ranks together. In a pipe,
    lines of progress name the speed, its standard error (+/-), and how far the speeds of single steps scatter
    around their median (jitter).

    With --min-np, --max-np or --host-discovery-script the run is elastic: a lost rank is replaced, and the number
    of ranks may change while the others go on. The program uses ringtrain.elastic for that; any other needs
    --on-loss Restart. Lines of an elastic run begin with the rank's slot, which stays, where its rank may change.

    Hosts of -H that are not this machine are reached by ssh, which asks nothing; they need Python, ringtrain and
    this directory at the same paths. In the script of a job of SLURM, ranks are on its nodes, reached by srun.

    Options stand before COMMAND; those behind it are COMMAND's own. Ends with the exit status of the first rank
    that failed, else 0; with 74 where none did and lines of the log could not be written.
    """
    hostfile = horovod.of("hostfile")
    given = f"-H {hosts}" if hosts else f"--hostfile {hostfile}" if hostfile else ""
    allocated = [] if given or elastic.given else allocated_hosts(os.environ)
    if ranks is None and not allocated:
        raise click.UsageError("Missing option '-np': how many ranks to start, as -np 2")
    ranks = ranks or sum(host.slots for host in allocated)
    world = elastic_run(ranks, given, elastic, horovod.of("slots_per_host") or 1)
    world = world and world.reach(horovod, given_hosts(hosts, hostfile, ranks))
    slots = ranks if world is None else world.slots
    if world is None or world.hosts is None:
        placed = find_hosts(hosts, hostfile, slots, allocated if len(allocated) > 1 else ())
    else:
        placed = [Host(name, count) for name, count in world.first.items()]
    _check_data_workers(placed, data_workers)
    check_name_option(name)
    check_metrics_option(metrics)
    check_launcher(slots, command)
    if any(host.is_here for host in placed):
        check_command(command[0], os.environ.get("PATH", os.defpath))
    check_log_dir(log_dir)
    log_to_stderr("run")
    job = name or f"{_run_program(command)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    files = AttemptFiles.of(log_dir.resolve(), NAMESPACE, job, 1)
    horovod.link_outputs(files, slots if world is None else world.log_slots)
    of_page = page_settings(ui)
    for note in () if quiet else [*horovod.notes, *note_on_tasks(os.environ), _starting_text(slots, len(placed))]:
        say_ending_line(note)
    started = time.monotonic()
    settings = horovod.variables | ({} if world is None else world.variables)
    settings |= {contract.ENV_DATA_WORKERS: str(data_workers), **of_page}
    settings |= {contract.ENV_FAIL_ON_NAN: "1"} if fail_on_nan else {}
    settings |= {contract.ENV_QUIET: "1" if quiet else ""}  # said in any case: a run within a run has its own
    settings |= {contract.ENV_METRICS: metrics} if metrics else {}
    place = _run_environment(slots, log_dir.resolve(), job, settings)
    words = () if world is None else world.words
    if world is not None and world.hosts is not None:
        changing = world.hosts
        code = exit_code_of(lambda: run_on_changing_hosts(changing, place, command, verbose, words))
    elif all(host.is_here for host in placed):
        code = exit_code_of(lambda: _run_local_job(ranks, place, command, verbose, words))
    else:
        reach = SrunOptions(horovod.ssh.interfaces) if allocated else horovod.ssh
        code = exit_code_of(lambda: run_on_hosts(placed, reach, place, command, verbose))
    outcome = read_outcome(files)
    if code or not quiet or (outcome or {}).get("warning"):
        with suppress(OSError):  # the terminal was closed
            say_end(files, outcome, time.monotonic() - started)
    _drop_what_nobody_reads()
    sys.exit(code)


def _drop_what_nobody_reads() -> None:
    """Python ends with 120 where it can't write the last of its output: to a terminal that was closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _check_data_workers(hosts: Sequence[Host], count: int) -> None:
    others = [host.name for host in hosts if not host.is_here]
    if others and count:
        raise click.UsageError(
            f"--data-workers {count}: they are on this machine alone, and -H names {others[0]}; on several hosts "
            "it is a DistributedTrainingJob with spec.dataWorkers"
        )


def _starting_text(ranks: int, hosts: int) -> str:
    where = f" on {hosts} hosts" if hosts > 1 else ""
    return f"starting {ranks} {'ranks' if ranks > 1 else 'rank'}{where}"


def _run_program(command: Sequence[str]) -> str:
    """A name for a run: the script, else the program."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", Path(script).stem)[:100] or "run"


def _run_local_job(
    ranks: int, settings: Mapping[str, str], command: Sequence[str], verbose: bool, words: Sequence[str]
) -> int:
    with ExitStack() as stack:
        environment = prepare_run(stack, settings, _write_token)
        level = level_of(environment, verbose)
        grace_s = AgentConfig.from_env(environment).save_s
        launcher = start_launcher(stack, environment, level, words)
        environment = environment_without_token(environment)
        start_data_workers(stack, environment, command, level)
        ended = Path(environment[contract.ENV_RUN_FOLDER]) / "ended.json"
        environment = {**environment, contract.ENV_TERMINATION_MESSAGE_PATH: str(ended)}
        agent = start_run_process(
            stack, contract.ROLE_WORKER, environment, ["agent", "--log-level", level, "--", *command]
        )
        signals = forward_run_signals(stack, launcher, f"{ranks} ranks" if ranks > 1 else "1 rank", grace_s)
        code = wait_for_run_processes(launcher, [agent], AGENT_S)
        return run_exit_code(code, run_lost_lines(ended), environment[contract.ENV_LOG_DIR], signals)


def _write_token(folder: Path) -> Path:
    (folder / "token").write_text(secrets.token_hex(32))
    return folder


def _run_environment(slots: int, log_dir: Path, job: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        **settings,
        **job_variables(job, NAMESPACE, str(uuid.uuid4()), 1, slots),
        contract.ENV_WORKER_INDEX: "0",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"{job}-worker-0",
        contract.ENV_POD_IP: "127.0.0.1",
        contract.ENV_LOG_DIR: str(log_dir),
    }
