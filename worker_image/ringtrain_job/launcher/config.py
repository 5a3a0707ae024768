"""The launcher's settings, read from its environment in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain_job.control.model import FORMATIONS
from ringtrain_job.control.settings import PodSettings, read_pod
from ringtrain_job.launcher.formation_state import FormationRules
from ringtrain_job.mpi.settings import MpiSettings, read_mpi

# Of all agents together: 70 cost a launcher less than a tenth of a core, see bench/scale/README.md.
_HEARTBEATS_PER_S = 70
_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@dataclass(frozen=True)
class ElasticSettings:
    """How the world of an elastic job may change. `start_ranks`: wanted until another number is put. `formation`:
    the last that a launcher before this one is known to have made."""

    rules: FormationRules
    start_ranks: int
    discovery_script: str = ""
    formation: int = 0


@dataclass(frozen=True)
class LauncherConfig(PodSettings):
    """What a launcher is told."""

    port: int
    status_port: int
    ports_held: bool
    log_root: Path
    pod: str
    node: str
    mpi: MpiSettings | None = None
    status_token: str = ""
    writes_report: bool = False
    fail_on_nan: bool = False
    quiet: bool = False
    timeline: Path | None = None
    elastic: ElasticSettings | None = None
    log_uri: str = ""
    data_workers: int = 0
    data_kind: str = contract.DATA_KINDS[0]
    otel: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    image: str = ""
    pod_grace_s: float = 0.0
    sites: tuple[str, ...] = ()
    site_label: str = ""

    @property
    def status_tokens(self) -> tuple[str, ...]:
        """Tokens of which `/status` asks for one. Empty where control is plain."""
        return () if self.secrets.tls is None else self.tokens

    @property
    def tokens(self) -> tuple[str, ...]:
        """The operator's, the job's. `PUT /workers` asks for one, also where control is plain: any user of this
        machine may come there. The tokens of the page are made of them; without any it is not served."""
        return tuple(token for token in (self.status_token, self.secrets.token) if token)

    @property
    def lost_after_s(self) -> float:
        """Silence after which an agent counts as lost: sooner than ranks give up on a peer (timeout_s)."""
        return self.timeout_s / 4

    @property
    def heartbeat_s(self) -> float:
        """How often an agent is to call when nothing changes; 0: as often as it does by itself."""
        paced = self.workers / _HEARTBEATS_PER_S
        return min(paced, self.timeout_s / 4) if paced > min(2.0, self.timeout_s / 16) else 0.0

    @property
    def silence_s(self) -> float:
        """The same for an agent that calls seldom, and whose connection stands: gRPC looks after that itself."""
        return max(self.lost_after_s, 3 * self.heartbeat_s)

    @property
    def behind_s(self) -> float:
        """How long workers that come at the same time may keep a launcher busy that gets a tenth of a core."""
        return 10 * self.crowd_s

    @property
    def vacancy_s(self) -> float:
        """How long a new pod's agent waits for the end of its predecessor's connection: well inside a call."""
        return max(1.0, self.timeout_s / 6) / 2

    @property
    def hand_over_s(self) -> float:
        """How long a launcher that is asked to stop looks whether the whole job is, or its own pod alone."""
        return self.settle_s

    @property
    def settle_s(self) -> float:
        """How long after the first failed exit to wait for others that may be its cause."""
        return min(2.0, self.timeout_s / 10)

    @property
    def drain_s(self) -> float:
        """How long agents may take to stop their ranks, which may save first, and to hand over the last lines."""
        return max(self.timeout_s, self.pod_grace_s)

    @property
    def connections(self) -> int:
        """Descriptors for those who connect, and for the launcher's own files."""
        return self.workers + self.data_workers + 256

    @property
    def open_files(self) -> int:
        """Descriptors that a launcher needs: a log for each rank, connections of each worker, and its own."""
        return self.world_size + 4 * self.workers + 256

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "LauncherConfig":
        """Read `env`; ConfigurationError names the first variable that is missing or out of range."""
        read = EnvironmentVariables(env)
        backend = read.choice(contract.ENV_BACKEND, ("ring", "mpi"), "ring")
        pod = read_pod(read)
        mpi = read_mpi(read) if backend == "mpi" else None
        elastic = _read_elastic(read, pod) if read.optional(contract.ENV_ELASTIC) else None
        if elastic and mpi and (mpi.launcher_as_worker or not elastic.rules.restarts):
            raise ConfigurationError(
                f"{contract.ENV_ELASTIC}={read.text(contract.ENV_ELASTIC)} in an mpi job: expected Restart, and a "
                "launcher without ranks; an MPI world cannot change while its processes live"
            )
        return cls(
            **vars(pod),
            port=read.port(contract.ENV_LAUNCHER_PORT, contract.PORT_LAUNCHER),
            status_port=read.port(contract.ENV_STATUS_PORT, contract.PORT_STATUS),
            ports_held=read.optional(contract.ENV_PORTS_HELD) == "1",
            status_token=read.optional(contract.ENV_STATUS_TOKEN) or "",
            writes_report=read.optional(contract.ENV_LOG_REPORT) == "1",
            quiet=read.optional(contract.ENV_QUIET) == "1",
            fail_on_nan=read.optional(contract.ENV_FAIL_ON_NAN) == "1",
            timeline=Path(found).absolute() if (found := read.optional(contract.ENV_TIMELINE)) else None,
            log_root=Path(read.text(contract.ENV_LOG_DIR, contract.LOG_DIR)),
            log_uri=read.optional(contract.ENV_LOG_URI) or "",
            pod=read.text(contract.ENV_POD_NAME, "launcher"),
            node=read.optional(contract.ENV_NODE_NAME) or "",
            mpi=mpi,
            elastic=elastic,
            data_workers=read.integer(contract.ENV_DATA_WORKERS, 0, low=0, high=100_000),
            data_kind=read.choice(contract.ENV_DATA_KIND, contract.DATA_KINDS, contract.DATA_KINDS[0]),
            otel=_read_otel(read),
            sinks=_read_sinks(read),
            image=read.optional(contract.ENV_WORKER_IMAGE) or "",
            pod_grace_s=read.delay(contract.ENV_GRACE_PERIOD, 0),
            sites=_read_sites(read, pod.workers),
            site_label=read.optional(contract.ENV_SITE_LABEL) or "",
        )


def _read_elastic(read: EnvironmentVariables, pod: PodSettings) -> ElasticSettings:
    on_loss = read.choice(contract.ENV_ELASTIC, contract.ON_LOSS)
    most = read.integer(contract.ENV_ELASTIC_MAX_RANKS, pod.world_size, low=1, high=pod.world_size)
    least = read.integer(contract.ENV_ELASTIC_MIN_RANKS, 1, low=1, high=most)
    rules = FormationRules(
        min_ranks=least,
        max_ranks=most,
        shrinks=on_loss == "Shrink",
        restarts=on_loss == "Restart",
        replace_timeout_s=read.seconds(contract.ENV_ELASTIC_REPLACE_TIMEOUT, 120),
        join_delay_s=read.delay(contract.ENV_ELASTIC_JOIN_DELAY, 30),
        formation_limit=read.integer(contract.ENV_ELASTIC_FORMATION_LIMIT, 100, low=1, high=FORMATIONS - 1),
        timeout_s=pod.timeout_s,
        start_timeout_s=pod.start_timeout_s,
    )
    start = read.integer(contract.ENV_ELASTIC_START_RANKS, most, low=least, high=most)
    script = read.optional(contract.ENV_HOST_DISCOVERY_SCRIPT) or ""
    formation = read.integer(contract.ENV_ELASTIC_FORMATION, 0, low=0, high=FORMATIONS - 1)
    return ElasticSettings(rules, start, script, formation)


def _read_sites(read: EnvironmentVariables, workers: int) -> tuple[str, ...]:
    """The site of each worker, by index; empty: all are in one."""
    text = read.optional(contract.ENV_WORKER_SITES)
    sites = tuple(text.split(",")) if text else ()
    if sites and len(sites) != workers:
        raise ConfigurationError(
            f"{contract.ENV_WORKER_SITES} has {len(sites)} names; expected {workers}, one for each worker"
        )
    return sites


def _read_otel(read: EnvironmentVariables) -> tuple[str, ...]:
    """What is sent to OpenTelemetry's receiver: traces, logs, both or nothing."""
    text = read.optional(contract.ENV_OTEL) or ""
    asked = tuple(filter(None, (word.strip() for word in text.split(","))))
    if not set(asked) <= {"traces", "logs"}:
        expected = "expected traces, logs, or both with a comma"
        raise ConfigurationError(f"{contract.ENV_OTEL}={quoted(text)}: {expected}")
    protocol = read.optional(_OTLP_PROTOCOL) or "grpc"
    if asked and protocol != "grpc":
        raise ConfigurationError(f"{_OTLP_PROTOCOL}={protocol!r}: launchers send OTLP by grpc alone; leave it out")
    return asked


def _read_sinks(read: EnvironmentVariables) -> tuple[str, ...]:
    """Where reports go beside the attempt's files, by name."""
    text = read.optional(contract.ENV_SINKS) or ""
    return tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
