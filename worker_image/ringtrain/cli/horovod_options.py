"""Options of `horovodrun` that `ringtrain run` has too: what each does here, or why it does nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from ringtrain.cli.check_build import check_build
from ringtrain.world.horovod_variables import LOG_LEVELS, OUR_LOG_LEVELS

_COUNT = click.IntRange(0)
_SECONDS = click.FloatRange(0, 604_800, min_open=True)
_ONE_WAY = "what is ready travels together, and there is nothing to set"
_NO_TUNING = "there is nothing to tune"
_NO_MPI = "ringtrain run starts ranks itself; mpirun starts MPI programs"


@dataclass(frozen=True)
class HorovodOption:
    """One option. `here`: what it does, or why nothing (not `means`). `config`: its key in a config file."""

    flags: tuple[str, ...]
    here: str
    config: str = ""
    kind: Any = str
    means: bool = False
    nargs: int = 1
    metavar: str | None = None

    @property
    def name(self) -> str:
        """What its value is called."""
        longest = max((flag.split("/")[0] for flag in self.flags), key=len)
        return longest.lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """As it is named to a reader."""
        return max((flag.split("/")[0] for flag in self.flags), key=len)

    def declare(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """`command` with this option; without meaning it is not in the help."""
        flag = self.kind is bool
        return click.option(
            *(*self.flags, self.name),
            is_flag=flag,
            type=None if flag else self.kind,
            default=None,
            nargs=1 if flag else self.nargs,
            metavar=self.metavar,
            help=self.here if self.means else None,
            hidden=not self.means,
        )(command)


def _meant(flags: str, here: str, kind: Any = str, config: str = "", metavar: str | None = None) -> HorovodOption:
    return HorovodOption(tuple(flags.split()), here, config, kind, True, metavar=metavar)


def _nothing(flags: str, why: str, kind: Any = str, config: str = "", nargs: int = 1) -> HorovodOption:
    return HorovodOption(tuple(flags.split()), why, config, kind, nargs=nargs)


OPTIONS: Final = (
    _meant(
        "-hostfile --hostfile",
        "File with a line `host slots=N` for each host, in the place of -H.",
        metavar="FILE",
    ),
    _meant(
        "--start-timeout", "Seconds until all hosts have to be there [default: 600].", _SECONDS, metavar="SECONDS"
    ),
    _meant(
        "--network-interfaces --network-interface",
        "Interfaces of which the first that a host has carries what ranks send to other hosts [default: the one "
        "by which the hosts reach this machine].",
        metavar="NAMES",
    ),
    _meant(
        "--output-filename",
        "Directory in which rank.N/stdout is a link to the log of rank N, stderr included.",
        metavar="DIR",
    ),
    _meant("--config-file", "YAML file of Horovod's form; the command line wins.", metavar="FILE"),
    _meant("-p --ssh-port", "Port of sshd on all hosts.", click.IntRange(1, 65535), metavar="PORT"),
    _meant("-i --ssh-identity-file", "Private key for ssh.", metavar="FILE"),
    _meant(
        "--timeline-filename",
        "Write what every rank did when to this file, as a Chrome trace, one file on each host.",
        config="timeline.filename",
        metavar="FILE",
    ),
    _meant(
        "--log-level",
        "Which messages of ringtrain itself are shown, of ranks too [default: warning].",
        click.Choice((*OUR_LOG_LEVELS, *LOG_LEVELS), case_sensitive=False),
        "logging.level",
    ),
    _meant(
        "--stall-check-shutdown-time-seconds",
        "How long a collective waits for a rank that does not come; 0: for ever (eleven days) [default: 600].",
        click.FloatRange(0, 604_800),
        "stall_check.shutdown_time_seconds",
        "SECONDS",
    ),
    _nothing("--gloo", "ranks meet through the launcher, without Gloo", bool),
    _nothing("--mpi", _NO_MPI, bool),
    _nothing("--jsrun", _NO_MPI, bool),
    _nothing("--mpi-args", _NO_MPI),
    _nothing("--tcp", "ranks of several hosts always speak TCP", bool),
    _nothing("--binding-args", "processes are not bound to cores"),
    _nothing("--disable-cache", "hosts are checked in every run", bool),
    _nothing("--fusion-threshold-mb", _ONE_WAY, _COUNT, "params.fusion_threshold_mb"),
    _nothing("--cycle-time-ms", _ONE_WAY, click.FLOAT, "params.cycle_time_ms"),
    _nothing("--cache-capacity", _ONE_WAY, _COUNT, "params.cache_capacity"),
    _nothing(
        "--hierarchical-allreduce/--no-hierarchical-allreduce",
        "ranks of a host always reduce in shared memory first",
        bool,
        "params.hierarchical_allreduce",
    ),
    _nothing(
        "--hierarchical-allgather/--no-hierarchical-allgather",
        "ranks of a host always share memory",
        bool,
        "params.hierarchical_allgather",
    ),
    _nothing(
        "--torus-allreduce/--no-torus-allreduce", "NCCL chooses its own algorithm", bool, "params.torus_allreduce"
    ),
    _nothing("--autotune/--no-autotune", _NO_TUNING, bool, "autotune.enabled"),
    _nothing("--autotune-log-file", _NO_TUNING, config="autotune.log_file"),
    _nothing("--autotune-warmup-samples", _NO_TUNING, _COUNT, "autotune.warmup_samples"),
    _nothing("--autotune-steps-per-sample", _NO_TUNING, _COUNT, "autotune.steps_per_sample"),
    _nothing("--autotune-bayes-opt-max-samples", _NO_TUNING, _COUNT, "autotune.bayes_opt_max_samples"),
    _nothing("--autotune-gaussian-process-noise", _NO_TUNING, click.FLOAT, "autotune.gaussian_process_noise"),
    _nothing(
        "--timeline-mark-cycles/--no-timeline-mark-cycles", "there are no cycles", bool, "timeline.mark_cycles"
    ),
    _meant(
        "--no-stall-check/--stall-check",
        "Wait for a rank that does not come for ever (eleven days), and do not name it.",
        bool,
    ),
    _meant(
        "--stall-check-warning-time-seconds",
        "After how long a rank that does not come is named; 0: never [default: 30].",
        click.FloatRange(0, 604_800),
        "stall_check.warning_time_seconds",
        "SECONDS",
    ),
    _nothing(
        "--mpi-threads-disable/--no-mpi-threads-disable", _NO_MPI, bool, "library_options.mpi_threads_disable"
    ),
    _nothing(
        "--num-nccl-streams", "NCCL runs on one stream, PyTorch's own", _COUNT, "library_options.num_nccl_streams"
    ),
    _nothing("--thread-affinity", "threads are not bound to cores", _COUNT, "library_options.thread_affinity"),
    _nothing(
        "--gloo-timeout-seconds",
        "RINGTRAIN_TIMEOUT says how long a process may be silent",
        _COUNT,
        "library_options.gloo_timeout_seconds",
    ),
    _nothing(
        "--log-with-timestamp/--log-without-timestamp", "messages have the time", bool, "logging.with_timestamp"
    ),
    _nothing("--log-hide-timestamp/--no-log-hide-timestamp", "messages have the time", bool),
    _nothing("-prefix-timestamp --prefix-output-with-timestamp", "lines of ranks stay as they are", bool),
    _nothing("--slots-per-host", "a discovery script's line without a number counts one slot", _COUNT),
    _nothing("--elastic-timeout", "--start-timeout and --replace-timeout are the deadlines", click.FLOAT),
    _nothing(
        "--blacklist-cooldown-range", "this machine is not set aside when a rank fails", click.FLOAT, nargs=2
    ),
)

# Elsewhere in the table of options of `ringtrain run`; here for the page and for config files.
RUN_OPTIONS: Final = (
    ("-np", "--num-proc"),
    ("-H", "--hosts"),
    ("-v", "--version"),
    ("-cb", "--check-build"),
    ("--verbose",),
    ("--min-np", "--min-num-proc"),
    ("--max-np", "--max-num-proc"),
    ("--host-discovery-script",),
    ("--reset-limit",),
)


def _show_build(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(check_build())
        ctx.exit()


check_build_option = click.option(
    *("-cb", "--check-build"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_build,
    help="Show which frameworks and transports can be used here, and end.",
)


def without_meaning(given: dict[str, Any]) -> list[str]:
    """A line for each option of `given` (by name) that does nothing here."""
    return [
        f"{option.shown} has no meaning here and is accepted: {option.here}"
        for option in OPTIONS
        if not option.means and given.get(option.name) is not None
    ]
