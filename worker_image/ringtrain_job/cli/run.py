"""The command `ringtrain run -np N CMD…`, which runs launcher, agents and ranks as processes."""

import os
import re
import secrets
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from ringtrain.errors import counted
from ringtrain.shared import contract
from ringtrain.shared.address import loopback_address
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
from ringtrain_job.cli.elastic import ElasticCommandOptions, elastic_options
from ringtrain_job.cli.ending import print_line, print_summary
from ringtrain_job.cli.failures import exit_code_of
from ringtrain_job.cli.interrupts import STOPPED_EARLY
from ringtrain_job.cli.main import discard_unwritable_output, log_to_stderr
from ringtrain_job.cli.run_extension import RunPlan, RunRequest, extension_options, run_plan
from ringtrain_job.cli.run_help import RunCommand
from ringtrain_job.cli.run_processes import (
    AGENT_S,
    RunStopped,
    environment_without_token,
    forward_run_signals,
    level_of,
    page_settings,
    prepare_run,
    read_lost_lines,
    run_exit_code,
    start_launcher,
    start_run_process,
    wait_for_run_processes,
)
from ringtrain_job.cli.runs import NAMESPACE, make_run_folder, runs_option
from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.logs.layout import AttemptFiles, OpenFolder


def _set_runs(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """Use the value of `--log-dir`, an old name of `--runs`, as the default of `--runs`."""
    if value is not None:
        ctx.default_map = {**(ctx.default_map or {}), "runs": value}


@click.command("run", cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    *("-np", "-n", "--np", "--num-proc", "ranks"),
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of ranks.",
)
@extension_options
@elastic_options
@runs_option
@click.option(
    "--log-dir", type=click.Path(path_type=Path), hidden=True, expose_value=False, is_eager=True, callback=_set_runs
)
@click.option("--name", help="Name of this run [default: the script's name and four hex digits, such as train-3f2a].")
@click.option(
    "--data-workers",
    type=click.IntRange(0, 1024),
    default=0,
    metavar="N",
    help="Number of data workers (ringtrain.data.service). Maturity: Beta.",
)
@click.option("--fail-on-nan", is_flag=True, help="End the run at the first loss that is not finite.")
@click.option(
    "--metrics",
    metavar="REGEX",
    help="Regular expression whose named groups are step, loss and metrics in printed lines. "
    "Default: known formats (tqdm, Keras, images/sec). `none`: lines are not read. "
    "Values of rt.report have priority. Maturity: Beta.",
)
@click.option(
    "--progress-every",
    type=click.FloatRange(0, 604_800, min_open=True),
    metavar="SECONDS",
    help="Seconds between progress lines if the output is not a terminal [default: 1, growing to 60].",
)
@click.option("--ui", is_flag=True, help="Serve a page of the run, and print its link.")
@click.option("--verbose", "-v", is_flag=True, help="Also print messages of launcher and agents.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the output of ranks and the reason of a failure.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int | None,
    given: Mapping[str, Any],
    elastic: ElasticCommandOptions,
    runs: Path,
    name: str | None,
    data_workers: int,
    fail_on_nan: bool,
    metrics: str | None,
    progress_every: float | None,
    ui: bool,
    verbose: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as N ranks, with one merged log.

    On a terminal the last line shows the step, the time left and the total speed of all ranks. In a pipe, lines
    of progress show the speed, its standard error (+/-), and the scatter of the speeds of single steps around
    their median (jitter).

    With an option of elastic runs, a lost rank is replaced, and the number of ranks may change during the run. The
    program must use ringtrain.elastic; any other program needs --on-loss Restart. Lines of an elastic run begin with
    the rank's slot, which does not change when its rank does.

    Write options before COMMAND; options after it belong to COMMAND. The exit status is the exit status of the first
    rank that failed, otherwise 0; it is 74 if no rank failed but lines of the log could not be written.
    """
    plan = run_plan(RunRequest(ranks, elastic, given))
    _check_data_workers(plan, data_workers)
    check_name_option(name)
    check_metrics_option(metrics)
    check_launcher(plan.slots, command)
    if plan.is_here:
        check_command(command[0], os.environ.get("PATH", os.defpath))
    loopback_address()  # raises at once if processes of this machine cannot reach each other
    check_log_dir(runs)
    log_to_stderr("run")
    settings = {
        **plan.variables,
        contract.ENV_DATA_WORKERS: str(data_workers),
        contract.ENV_QUIET: "1" if quiet else "",  # always set: a run inside of a run must not inherit it
        **({contract.ENV_FAIL_ON_NAN: "1"} if fail_on_nan else {}),
        **({contract.ENV_METRICS: metrics} if metrics else {}),
        **({contract.ENV_PROGRESS_EVERY: f"{progress_every:g}"} if progress_every else {}),
        **page_settings(ui),
    }
    folder = make_run_folder(runs.resolve(), name, _run_program(command))
    opened = OpenFolder(folder)
    plan.link(AttemptFiles(folder / "1"))
    taken = [] if name in (None, folder.name) else [f"a run {name} exists; this one is {folder.name}"]
    notes = [*plan.notes, *taken, _starting_text(plan)]
    for note in () if quiet else notes:
        print_line(note)
    place = {
        **settings,
        **job_variables(folder.name, NAMESPACE, str(uuid.uuid4()), 1, plan.slots),
        contract.ENV_WORKER_INDEX: "0",
        contract.ENV_AGENT_PORT: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_POD_NAME: f"{folder.name}-worker-0",
        contract.ENV_POD_IP: loopback_address(),
        contract.ENV_LOG_DIR: str(runs.resolve()),
    }
    start = plan.start or partial(_run_local_job, plan)
    stopped = 0
    try:
        code = exit_code_of(lambda: start(place, command, verbose), _print_error)
    except RunStopped as exc:
        code = stopped = exc.exit_code
    folder = opened.path  # a person may have renamed it
    if opened.is_deleted:
        with suppress(OSError):  # the terminal was closed
            print_line(f"{folder} was deleted or moved to another file system; its log lacks the lines since then")
    files = AttemptFiles(folder / "1")
    with suppress(OSError):
        folder.rmdir()  # fails unless it is empty, because no launcher has started
    if stopped and not folder.exists():
        with suppress(OSError):  # the terminal was closed
            print_line(STOPPED_EARLY)
    outcome = read_outcome(files)
    if folder.exists() and (code or not quiet or (outcome or {}).get("warning")):
        with suppress(OSError, KeyboardInterrupt):  # the terminal was closed, or Ctrl-C after the end of the run
            print_summary(files)
    discard_unwritable_output()
    sys.exit(code)


def _print_error(text: str) -> None:
    print_line(f"Error: {text}")


def _check_data_workers(plan: RunPlan, count: int) -> None:
    if plan.others and count:
        raise click.UsageError(
            f"--data-workers {count}: data workers run on this machine only, but the run uses {plan.others[0]}; for "
            "several hosts, use a DistributedTrainingJob with spec.dataWorkers"
        )


def _starting_text(plan: RunPlan) -> str:
    where = f" on {plan.hosts} hosts" if plan.hosts > 1 else ""
    return f"starting {counted(plan.ranks, 'rank')}{where}"


def _run_program(command: Sequence[str]) -> str:
    """Return a name for the run: the script's name without .py, or the program's."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", Path(script).stem)[:100] or "run"


def _run_local_job(plan: RunPlan, settings: Mapping[str, str], command: Sequence[str], verbose: bool) -> int:
    with ExitStack() as stack:
        environment = prepare_run(stack, settings, _write_token)
        level = level_of(environment, verbose)
        grace_s = AgentConfig.from_env(environment).save_s
        launcher = start_launcher(stack, environment, level, plan.words)
        signals = forward_run_signals(stack, launcher, counted(plan.ranks, "rank"), grace_s)
        environment = environment_without_token(environment)
        start_data_workers(stack, environment, command, level)
        ended = Path(environment[contract.ENV_RUN_FOLDER]) / "ended.json"
        environment = {**environment, contract.ENV_TERMINATION_MESSAGE_PATH: str(ended)}
        agent = start_run_process(
            stack, contract.ROLE_WORKER, environment, ["agent", "--log-level", level, "--", *command]
        )
        code = wait_for_run_processes(launcher, [agent], AGENT_S)
        return run_exit_code(code, read_lost_lines(ended), environment[contract.ENV_LOG_DIR], signals)


def _write_token(folder: Path) -> Path:
    (folder / "token").write_text(secrets.token_hex(32))
    return folder
