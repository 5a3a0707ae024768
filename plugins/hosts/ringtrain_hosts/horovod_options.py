"""Table of horovodrun's options that `ringtrain run` accepts: their effect, or why they have none."""

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

import click

from ringtrain.shared.horovod_variables import LOG_LEVELS, OUR_LOG_LEVELS

_COUNT, _FLOAT = click.IntRange(0), click.FLOAT
_SECONDS = click.FloatRange(0, 604_800, min_open=True)


@dataclass(frozen=True)
class HorovodrunOption:
    """Command-line option of horovodrun, with what `ringtrain` does with its value.

    `means`: whether the option has an effect. `here`: the effect, or the reason why there is none. `config`: key of the
    option in a config file.
    """

    flags: str
    here: str
    kind: Any = str
    config: str = ""
    metavar: str | None = None
    means: bool = True

    @property
    def name(self) -> str:
        """Name of the option's argument in Python."""
        return self.shown.lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """Longest flag of the option, which messages and sections of the help use."""
        return max((flag.split("/")[0] for flag in self.flags.split()), key=len)

    def option(self) -> click.Option:
        """Return the option for a click command. An option without effect is hidden."""
        flag = self.kind is bool
        return click.Option(
            (*self.flags.split(), self.name),
            is_flag=flag,
            type=None if flag else self.kind,
            default=None,
            metavar=self.metavar,
            help=self.here if self.means else None,
            hidden=not self.means,
        )


_ONE_WAY = "gradients that are ready are sent together; this needs no setting"
_NO_TUNING = "there is nothing to tune"
_NO_MPI = "ringtrain run starts ranks itself; mpirun starts MPI programs"
# Options without effect: flags, type of the value, key in a config file, and reason.
_WITHOUT_MEANING: Final[tuple[tuple[str, Any, str, str], ...]] = (
    ("--gloo", bool, "", "ranks find each other through the launcher, without Gloo"),
    ("--mpi", bool, "", _NO_MPI),
    ("--jsrun", bool, "", _NO_MPI),
    ("--mpi-args", str, "", _NO_MPI),
    ("--tcp", bool, "", "ranks of several hosts always use TCP"),
    ("--binding-args", str, "", "processes are not bound to cores"),
    ("--disable-cache", bool, "", "hosts are checked in every run"),
    ("--fusion-threshold-mb", _COUNT, "params.fusion_threshold_mb", _ONE_WAY),
    ("--cycle-time-ms", _FLOAT, "params.cycle_time_ms", _ONE_WAY),
    ("--cache-capacity", _COUNT, "params.cache_capacity", _ONE_WAY),
    (
        "--hierarchical-allreduce/--no-hierarchical-allreduce",
        bool,
        "params.hierarchical_allreduce",
        "ranks of a host always reduce in shared memory first",
    ),
    (
        "--hierarchical-allgather/--no-hierarchical-allgather",
        bool,
        "params.hierarchical_allgather",
        "ranks of a host always share memory",
    ),
    ("--torus-allreduce/--no-torus-allreduce", bool, "params.torus_allreduce", "NCCL chooses its own algorithm"),
    ("--autotune/--no-autotune", bool, "autotune.enabled", _NO_TUNING),
    ("--autotune-log-file", str, "autotune.log_file", _NO_TUNING),
    ("--autotune-warmup-samples", _COUNT, "autotune.warmup_samples", _NO_TUNING),
    ("--autotune-steps-per-sample", _COUNT, "autotune.steps_per_sample", _NO_TUNING),
    ("--autotune-bayes-opt-max-samples", _COUNT, "autotune.bayes_opt_max_samples", _NO_TUNING),
    ("--autotune-gaussian-process-noise", _FLOAT, "autotune.gaussian_process_noise", _NO_TUNING),
    ("--timeline-mark-cycles/--no-timeline-mark-cycles", bool, "timeline.mark_cycles", "there are no cycles"),
    ("--mpi-threads-disable/--no-mpi-threads-disable", bool, "library_options.mpi_threads_disable", _NO_MPI),
    ("--num-nccl-streams", _COUNT, "library_options.num_nccl_streams", "NCCL runs on one stream, PyTorch's own"),
    ("--thread-affinity", _COUNT, "library_options.thread_affinity", "threads are not bound to cores"),
    (
        "--gloo-timeout-seconds",
        _COUNT,
        "library_options.gloo_timeout_seconds",
        "RINGTRAIN_TIMEOUT limits how long a process may be silent",
    ),
    ("--log-with-timestamp/--log-without-timestamp", bool, "logging.with_timestamp", "messages have the time"),
    ("--log-hide-timestamp/--no-log-hide-timestamp", bool, "", "messages have the time"),
    ("-prefix-timestamp --prefix-output-with-timestamp", bool, "", "no timestamps are added to the output of ranks"),
    ("--elastic-timeout", _FLOAT, "", "--start-timeout and --replace-timeout are the deadlines"),
)
OPTIONS: Final = (
    HorovodrunOption(
        "-hostfile --hostfile",
        "File with a line `host slots=N` for each host, instead of -H.",
        metavar="FILE",
    ),
    HorovodrunOption(
        "--start-timeout", "Seconds until all hosts must have started [default: 600].", _SECONDS, metavar="SECONDS"
    ),
    HorovodrunOption(
        "--network-interfaces --network-interface",
        "Interfaces for data between hosts; each host uses its first one of these [default: the one by which the "
        "hosts reach this machine].",
        metavar="NAMES",
    ),
    HorovodrunOption(
        "--output-filename",
        "Directory in which rank.N/stdout is a link to the log of rank N, stderr included.",
        metavar="DIR",
    ),
    HorovodrunOption(
        "--slots-per-host",
        "Slots of a host that the discovery script prints without a number [default: 1].",
        click.IntRange(1, 1024),
        metavar="N",
    ),
    HorovodrunOption(
        "--blacklist-cooldown-range",
        "Do not use a host for MIN seconds after a failure, doubled after each further one up to MAX [default: "
        "10 600, from the second failure within an hour on].",
        (_FLOAT, _FLOAT),
        metavar="MIN MAX",
    ),
    HorovodrunOption("--config-file", "YAML file in Horovod's format; the command line has priority.", metavar="FILE"),
    HorovodrunOption("-p --ssh-port", "Port of sshd on all hosts.", click.IntRange(1, 65535), metavar="PORT"),
    HorovodrunOption("-i --ssh-identity-file", "Private key for ssh.", metavar="FILE"),
    HorovodrunOption(
        "--timeline-filename",
        "Write a Chrome trace of every rank to this file, one file on each host.",
        config="timeline.filename",
        metavar="FILE",
    ),
    HorovodrunOption(
        "--log-level",
        "Level of ringtrain's own messages, also in ranks [default: warning].",
        click.Choice((*OUR_LOG_LEVELS, *LOG_LEVELS), case_sensitive=False),
        "logging.level",
    ),
    HorovodrunOption(
        "--stall-check-shutdown-time-seconds",
        "Time that a collective waits for a missing rank; 0: no limit (eleven days) [default: 600].",
        click.FloatRange(0, 604_800),
        "stall_check.shutdown_time_seconds",
        "SECONDS",
    ),
    HorovodrunOption(
        "--no-stall-check/--stall-check",
        "Wait for a missing rank without limit (eleven days), and do not report it.",
        bool,
    ),
    HorovodrunOption(
        "--stall-check-warning-time-seconds",
        "Time after which a missing rank is reported; 0: never [default: 30].",
        click.FloatRange(0, 604_800),
        "stall_check.warning_time_seconds",
        "SECONDS",
    ),
    *(HorovodrunOption(flags, why, kind, key, means=False) for flags, kind, key, why in _WITHOUT_MEANING),
)


def _show_build(ctx: click.Context, _: click.Parameter, is_used: bool) -> None:
    """Print what `--check-build` prints and exit, if that option is used."""
    if is_used:
        click.echo(check_build())
        ctx.exit()


CHECK_BUILD: Final = click.Option(
    ("-cb", "--check-build"),
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_build,
    help="Print the available frameworks and transports, and exit.",
)


def ignored_option_notes(given: dict[str, Any]) -> list[str]:
    """Return a message for each option in `given` that has no effect. `given`: values by name."""
    return [
        f"{option.shown} is accepted but has no effect: {option.here}"
        for option in OPTIONS
        if not option.means and given.get(option.name) is not None
    ]


def check_build() -> str:
    """Return the text that `--check-build` prints: Horovod's three lists of available features."""
    lists = {
        "Frameworks": {name: _is_installed(module) for name, module in _FRAMEWORKS.items()},
        "Controllers": {"MPI": _is_installed("mpi4py"), "Gloo": False, "Ringtrain's launcher": True},
        "Tensor Operations": {
            **dict.fromkeys(("NCCL", "DDL", "CCL"), False),
            "MPI": _is_installed("mpi4py"),
            "Gloo": False,
            "gRPC": True,
            "shared memory": _is_installed("ringtrain._core.kernels._native"),
        },
    }
    lines = [f"Ringtrain v{version('ringtrain')}:"]
    for title, rows in lists.items():
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if is_available else ' '}] {name}" for name, is_available in rows.items()]
    return "\n".join(lines)


_FRAMEWORKS = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet", "Keras": "keras"}


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
