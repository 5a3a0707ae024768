"""The launcher's settings, read from its environment in one place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.settings import Settings, choice, integer, path, seconds, setting, switch, tcp_port, text
from ringtrain_job.control.model import FORMATIONS
from ringtrain_job.control.settings import PodSettings
from ringtrain_job.launcher.generation_state import GenerationRules
from ringtrain_job.launcher.plugins import check_plugins

# All agents together: 70 heartbeats per second cost a launcher less than a tenth of a core (bench/scale/README.md).
_HEARTBEATS_PER_S = 70
_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@dataclass(frozen=True, kw_only=True)
class ElasticSettings(Settings):
    """Limits on the changes of an elastic job's world. `start_ranks`: number of ranks until PUT /workers sets another.
    `formation`: the last generation that an earlier launcher is known to have formed."""

    rules: GenerationRules = setting(lambda env, seen: GenerationRules.read(env, world_size=seen.world_size))
    start_ranks: int = integer(
        contract.ENV_ELASTIC_START_RANKS,
        derived=lambda seen: seen.rules.max_ranks,
        low=lambda seen: seen.rules.min_ranks,
        high=lambda seen: seen.rules.max_ranks,
    )
    discovery_script: str = text(contract.ENV_HOST_DISCOVERY_SCRIPT, "")
    formation: int = integer(contract.ENV_ELASTIC_FORMATION, 0, low=0, high=FORMATIONS - 1)


def _read_elastic(env: EnvironmentVariables, seen: Any) -> ElasticSettings | None:
    is_elastic = env.optional(contract.ENV_ELASTIC) is not None
    return ElasticSettings.read(env, world_size=seen.workers * seen.slots) if is_elastic else None


def _read_sites(env: EnvironmentVariables, workers: int) -> tuple[str, ...]:
    """Return the site of each worker, by index; empty if all workers are at one site."""
    said = env.optional(contract.ENV_WORKER_SITES)
    sites = tuple(said.split(",")) if said else ()
    if sites and len(sites) != workers:
        raise ConfigurationError(
            f"{contract.ENV_WORKER_SITES} has {len(sites)} names; expected {workers}, one for each worker"
        )
    return sites


def _read_otel(env: EnvironmentVariables) -> tuple[str, ...]:
    """Return the signals sent to OpenTelemetry's receiver: traces, logs, both or none."""
    asked = env.words(contract.ENV_OTEL)
    if not set(asked) <= {"traces", "logs"}:
        expected = "expected traces, logs, or both with a comma"
        raise ConfigurationError(f"{contract.ENV_OTEL}={quoted(env.text(contract.ENV_OTEL))}: {expected}")
    protocol = env.optional(_OTLP_PROTOCOL) or "grpc"
    if asked and protocol != "grpc":
        raise ConfigurationError(f"{_OTLP_PROTOCOL}={protocol!r}: launchers send OTLP by grpc alone; leave it out")
    return asked


@dataclass(frozen=True, kw_only=True)
class LauncherConfig(PodSettings):
    """Settings of a launcher. `sinks`: names of the sinks that receive reports in addition to the attempt's files."""

    port: int = tcp_port(contract.ENV_LAUNCHER_PORT, contract.PORT_LAUNCHER)
    status_port: int = tcp_port(contract.ENV_STATUS_PORT, contract.PORT_STATUS)
    ports_held: bool = switch(contract.ENV_PORTS_HELD)
    log_root: Path = path(contract.ENV_LOG_DIR, Path(contract.LOG_DIR))
    pod: str = text(contract.ENV_POD_NAME, "launcher")
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
    def status_tokens(self) -> tuple[str, ...]:
        """Tokens that `/status` accepts; empty if the control channel is not encrypted."""
        return () if self.secrets.tls is None else self.tokens

    @property
    def tokens(self) -> tuple[str, ...]:
        """The operator's and the job's token. `PUT /workers` requires one even if the control channel is not encrypted,
        because any user of this machine can connect. The page derives its tokens from them and is not served without
        any."""
        return tuple(token for token in (self.status_token, self.secrets.token) if token)

    @property
    def lost_after_s(self) -> float:
        """Seconds of silence after which an agent counts as lost: less than timeout_s, after which ranks give up on a
        peer."""
        return self.timeout_s / 4

    @property
    def heartbeat_s(self) -> float:
        """Interval in seconds at which an idle agent sends heartbeats; 0: the agent's default."""
        paced = self.workers / _HEARTBEATS_PER_S
        return min(paced, self.timeout_s / 4) if paced > min(2.0, self.timeout_s / 16) else 0.0

    @property
    def silence_s(self) -> float:
        """Seconds of silence after which an agent with an open connection and a long heartbeat interval counts as lost.
        gRPC itself detects broken connections."""
        return max(self.lost_after_s, 3 * self.heartbeat_s)

    @property
    def behind_s(self) -> float:
        """Longest time in seconds for which workers that connect at the same time can occupy a launcher with a tenth of
        a core."""
        return 10 * self.handshake_time_s

    @property
    def vacancy_s(self) -> float:
        """Seconds that a new pod's agent waits for the end of its predecessor's connection; shorter than the deadline
        of a call."""
        return max(1.0, self.timeout_s / 6) / 2

    @property
    def hand_over_s(self) -> float:
        """Seconds that a launcher waits after a stop request to see whether the whole job is stopped, or only its own
        pod."""
        return self.settle_s

    @property
    def settle_s(self) -> float:
        """Seconds to wait after the first failed exit for other exits that may be its cause."""
        return min(2.0, self.timeout_s / 10)

    @property
    def drain_s(self) -> float:
        """Seconds that agents may take to stop their ranks, which may save first, and to send the last log lines."""
        return max(self.timeout_s, self.pod_grace_s)

    @property
    def connections(self) -> int:
        """File descriptors for connections of workers and data workers, and for the launcher's own files."""
        return self.workers + self.data_workers + 256

    @property
    def open_files(self) -> int:
        """File descriptors that a launcher needs: a log for each rank, connections of each worker, and its own
        files."""
        return self.world_size + 4 * self.workers + 256
