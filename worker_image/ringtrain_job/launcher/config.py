"""Settings of the launcher, read from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final, Self

from ringtrain.errors import ConfigurationError, counted, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.settings import Settings, choice, integer, path, seconds, setting, switch, tcp_port, text
from ringtrain_job.control.model import GENERATIONS
from ringtrain_job.control.settings import PodSettings
from ringtrain_job.launcher.generation_state import GenerationRules

# All agents together: 70 heartbeats per second cost a launcher less than a tenth of a core (bench/scale/README.md).
_HEARTBEATS_PER_S = 70
_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@dataclass(frozen=True, kw_only=True)
class ElasticSettings(Settings):
    """Settings of an elastic job. `start_ranks`: number of ranks until PUT /workers changes it. `known_generation`: the
    last generation of an earlier launcher, as far as the operator knows."""

    rules: GenerationRules = setting(lambda env, seen: GenerationRules.read(env, world_size=seen.world_size))
    start_ranks: int = integer(
        contract.ENV_ELASTIC_START_RANKS,
        derived=lambda seen: seen.rules.max_ranks,
        low=lambda seen: seen.rules.min_ranks,
        high=lambda seen: seen.rules.max_ranks,
    )
    discovery_script: str = text(contract.ENV_HOST_DISCOVERY_SCRIPT, "")
    known_generation: int = integer(contract.ENV_ELASTIC_FORMATION, 0, low=0, high=GENERATIONS - 1)


def _read_elastic(env: EnvironmentVariables, seen: Any) -> ElasticSettings | None:
    is_elastic = env.optional(contract.ENV_ELASTIC) is not None
    return ElasticSettings.read(env, world_size=seen.workers * seen.slots) if is_elastic else None


def _read_sites(env: EnvironmentVariables, workers: int) -> tuple[str, ...]:
    """Return the site (group of hosts with a fast network) of each worker, by index; empty without sites."""
    said = env.optional(contract.ENV_WORKER_SITES)
    sites = tuple(said.split(",")) if said else ()
    if sites and len(sites) != workers:
        raise ConfigurationError(
            f"{contract.ENV_WORKER_SITES} has {counted(len(sites), 'name')}; expected {workers}, one for each worker"
        )
    return sites


def _read_otel(env: EnvironmentVariables) -> tuple[str, ...]:
    """Return the names of the signals that go to OpenTelemetry, out of "traces" and "logs"."""
    asked = env.words(contract.ENV_OTEL)
    if not set(asked) <= {"traces", "logs"}:
        expected = "expected traces, logs, or traces,logs"
        raise ConfigurationError(f"{contract.ENV_OTEL}={quoted(env.text(contract.ENV_OTEL))}: {expected}")
    protocol = env.optional(_OTLP_PROTOCOL) or "grpc"
    if asked and protocol != "grpc":
        raise ConfigurationError(
            f"{_OTLP_PROTOCOL}={protocol!r}: expected grpc, the only protocol of the launcher; "
            "set grpc or omit the variable"
        )
    return asked


NO_POD: Final = "launcher"  # name of the launcher outside of pods


@dataclass(frozen=True, kw_only=True)
class LauncherConfig(PodSettings):
    """Settings of the launcher. `sinks`: names of tools that also receive the ranks' reports, by plugins."""

    port: int = tcp_port(contract.ENV_LAUNCHER_PORT, contract.PORT_LAUNCHER)
    status_port: int = tcp_port(contract.ENV_STATUS_PORT, contract.PORT_STATUS)
    ports_held: bool = switch(contract.ENV_PORTS_HELD)
    log_root: Path = path(contract.ENV_LOG_DIR, Path(contract.LOG_DIR))
    pod: str = text(contract.ENV_POD_NAME, NO_POD)
    node: str = text(contract.ENV_NODE_NAME, "")
    status_token: str = text(contract.ENV_STATUS_TOKEN, "")
    writes_report: bool = setting(lambda env, _: env.optional(contract.ENV_LOG_REPORT) in ("1", contract.IF_INSTALLED))
    fail_on_nan: bool = switch(contract.ENV_FAIL_ON_NAN)
    quiet: bool = switch(contract.ENV_QUIET)
    progress_every_s: float = seconds(contract.ENV_PROGRESS_EVERY, 0.0)
    timeline: Path | None = text(contract.ENV_TIMELINE, None, made=lambda file: Path(file).absolute())
    elastic: ElasticSettings | None = setting(_read_elastic)
    log_uri: str = text(contract.ENV_LOG_URI, "")
    data_kind: str = choice(contract.ENV_DATA_KIND, contract.DATA_KINDS, contract.DATA_KINDS[0])
    otel: tuple[str, ...] = setting(lambda env, _: _read_otel(env))
    sinks: tuple[str, ...] = setting(lambda env, _: tuple(dict.fromkeys(env.words(contract.ENV_SINKS))))
    image: str = text(contract.ENV_WORKER_IMAGE, "")
    pod_grace_s: float = seconds(contract.ENV_GRACE_PERIOD, 0.0, zero=True)
    sites: tuple[str, ...] = setting(lambda env, seen: _read_sites(env, seen.workers))
    site_label: str = text(contract.ENV_SITE_LABEL, "")

    @classmethod
    def read(cls, env: EnvironmentVariables, **known: Any) -> Self:
        check_plugins(env)
        return super().read(env, **known)

    @property
    def is_of_run_command(self) -> bool:
        """Whether `ringtrain run` started this launcher. On a cluster and in `dtj local`, it is a pod with a name."""
        return self.pod == NO_POD

    @property
    def nan_setting(self) -> str:
        """Name by which the user of this launcher knows `fail_on_nan`: an option, or a field of the job."""
        return "--fail-on-nan" if self.is_of_run_command else "spec.runPolicy.failOnNaN"

    @property
    def status_tokens(self) -> tuple[str, ...]:
        """Tokens, one of which `/status` requires; empty without TLS, when no token is required."""
        return () if self.secrets.tls is None else self.tokens

    @property
    def tokens(self) -> tuple[str, ...]:
        """The operator's and the job's token, one of which `PUT` requests require even without TLS, because any user of
        this machine can connect. The page's tokens are derived from them."""
        return tuple(token for token in (self.status_token, self.secrets.token) if token)

    @property
    def lost_after_s(self) -> float:
        """Seconds of silence after which an agent counts as lost, so short that ranks have not yet given up on a silent
        peer."""
        return self.timeout_s / 4

    @property
    def heartbeat_s(self) -> float:
        """Seconds between the heartbeats of an idle agent; longer for many workers. 0 stands for the agent's
        default."""
        paced = self.workers / _HEARTBEATS_PER_S
        return min(paced, self.timeout_s / 4) if paced > min(2.0, self.timeout_s / 16) else 0.0

    @property
    def silence_s(self) -> float:
        """Seconds without a heartbeat after which an agent counts as lost although its connection is open."""
        return max(self.lost_after_s, 3 * self.heartbeat_s)

    @property
    def behind_s(self) -> float:
        """Allowance in seconds for the launcher's answers, which are late while all workers connect at the same
        time."""
        return 10 * self.handshake_time_s

    @property
    def vacancy_s(self) -> float:
        """Seconds that a replacement agent waits until its predecessor's connection has ended."""
        return max(1.0, self.timeout_s / 6) / 2

    @property
    def hand_over_s(self) -> float:
        """Seconds after a stop request in which the launcher finds out whether only its own pod must stop."""
        return self.settle_s

    @property
    def settle_s(self) -> float:
        """Seconds to wait after the first failed rank for reports of earlier failures."""
        return min(2.0, self.timeout_s / 10)

    @property
    def drain_s(self) -> float:
        """Seconds that agents have to stop their ranks, which may save a checkpoint, and to send the last log lines."""
        return max(self.timeout_s, self.pod_grace_s)

    @property
    def connections(self) -> int:
        """Number of file descriptors for connections of workers and data workers, and for other files."""
        return self.workers + self.data_workers + 256

    @property
    def open_files(self) -> int:
        """Number of file descriptors that the launcher needs to keep a log open for each rank."""
        return self.world_size + 4 * self.workers + 256


def check_plugins(env: EnvironmentVariables, plugins: Mapping[str, str] = contract.PLUGIN_VARIABLES) -> None:
    """Raise ConfigurationError if `env` sets a variable whose plugin is missing and which would be ignored.

    `plugins`: plugin name by variable. The value `if-installed` is never refused.
    """
    for variable, plugin in plugins.items():
        value = env.optional(variable)
        if value and value != contract.IF_INSTALLED and not _is_installed(f"ringtrain-{plugin}"):
            raise ConfigurationError(
                f"{variable}={quoted(value)} needs the plugin ringtrain-{plugin} where the launcher runs: "
                f"pip install 'ringtrain[{plugin}]'"
            )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
