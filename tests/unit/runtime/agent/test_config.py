"""Settings of agent and launcher, and the errors about wrong ones."""

import re
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.small_job import environment

from ringtrain.errors import ConfigurationError
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.open_files import allow_open_files, open_log_limit

JOB = environment(3, 2, 2, BACKEND="ring")
WORKER = {**JOB, "RINGTRAIN_WORKER_INDEX": "1", "RINGTRAIN_LAUNCHER_ADDRESS": "digits-launcher:7350"}


def test_defaults_of_the_contract() -> None:
    """Defaults are those of docs/contract.md."""
    agent, launcher = AgentConfig.from_env(WORKER), LauncherConfig.from_env(JOB)
    ports = agent.ports
    assert (ports.agent, ports.ring_base, ports.master, ports.tf_base) == (7360, 7400, 7390, 7500)
    assert (launcher.port, launcher.status_port) == (7350, 7351)
    assert agent.timeout_s == launcher.timeout_s == 60
    assert agent.start_timeout_s == launcher.start_timeout_s == 600
    assert launcher.log_root == Path("/var/log/ringtrain")
    assert agent.pod == "digits-worker-1"
    assert agent.first_rank == 2
    assert launcher.world_size == 6
    assert agent.termination.path == Path("/dev/termination-log")
    assert not agent.termination.required
    assert agent.secrets.tls is None


def test_inner_deadlines_derive_from_one_knob() -> None:
    """An agent is lost before its ranks' peers give up on them, and heartbeats come well within that."""
    for timeout in ("4", "60", "600"):
        agent = AgentConfig.from_env({**WORKER, "RINGTRAIN_TIMEOUT": timeout})
        launcher = LauncherConfig.from_env({**JOB, "RINGTRAIN_TIMEOUT": timeout})
        assert agent.heartbeat_s * 3 < launcher.lost_after_s < float(timeout)
        assert launcher.settle_s < launcher.lost_after_s
        assert agent.grace_s < launcher.drain_s
        assert agent.launcher_lost_s == float(timeout)


@pytest.mark.parametrize(("period", "drain_s"), [({}, 60), ({"RINGTRAIN_GRACE_PERIOD": "300"}, 300)])
def test_the_launcher_waits_for_ranks_that_save(period: Mapping[str, str], drain_s: float) -> None:
    """The launcher waits for the pods' grace period: ranks that still run when it releases the agents are killed."""
    told = {"RINGTRAIN_CHECKPOINT_URI": "s3://bucket/job", **period}
    launcher = LauncherConfig.from_env({**JOB, **told})
    assert launcher.drain_s == drain_s > AgentConfig.from_env({**WORKER, **told}).save_s


def test_an_elastic_jobs_agent_waits_for_a_launcher_in_a_new_pod() -> None:
    """The agent waits as long as the launcher of a new attempt may take to start."""
    settings = {"RINGTRAIN_ELASTIC": "Replace", "RINGTRAIN_START_TIMEOUT": "300", "RINGTRAIN_TIMEOUT": "60"}
    assert AgentConfig.from_env({**WORKER, **settings}).launcher_lost_s == 300


@pytest.mark.parametrize(("period", "notice_s"), [(None, 15), ("300", 285), ("10", 0), ("0", 0)])
def test_how_long_ranks_of_a_pod_that_stops_may_hand_over(period: str | None, notice_s: float) -> None:
    """All of the pod's grace but what signalled ranks need to end and the last lines to be handed over."""
    told = {} if period is None else {"RINGTRAIN_GRACE_PERIOD": period}
    assert AgentConfig.from_env({**WORKER, **told}).notice_s == notice_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"RINGTRAIN_ELASTIC": "replace"},
            "RINGTRAIN_ELASTIC='replace': expected one of Replace, Shrink, Restart",
        ),
        ({"RINGTRAIN_GRACE_PERIOD": "-1"}, "RINGTRAIN_GRACE_PERIOD='-1': expected seconds from 0"),
        ({"RINGTRAIN_JOB_NAME": ""}, "RINGTRAIN_JOB_NAME is not set"),
        ({"RINGTRAIN_ATTEMPT": "0"}, "RINGTRAIN_ATTEMPT='0': expected an integer from 1 to"),
        ({"RINGTRAIN_NUM_WORKERS": "two"}, "RINGTRAIN_NUM_WORKERS='two': expected an integer"),
        ({"RINGTRAIN_WORKER_INDEX": "3"}, "RINGTRAIN_WORKER_INDEX='3': expected an integer from 0 to 2"),
        ({"RINGTRAIN_LAUNCHER_ADDRESS": "digits"}, "RINGTRAIN_LAUNCHER_ADDRESS='digits': expected host:port"),
        ({"RINGTRAIN_TIMEOUT": "-1"}, "RINGTRAIN_TIMEOUT='-1': expected seconds above 0"),
        ({"RINGTRAIN_TIMEOUT": "soon"}, "RINGTRAIN_TIMEOUT='soon': expected a number of seconds"),
        ({"RINGTRAIN_TIMEOUT": "nan"}, "RINGTRAIN_TIMEOUT='nan': expected seconds above 0"),
        (
            {"RINGTRAIN_RING_PORT_BASE": "65535"},
            "RINGTRAIN_RING_PORT_BASE=65535: 2 ports from 65535 on would exceed 65535",
        ),
        ({"RINGTRAIN_AGENT_PORT": "70000"}, "RINGTRAIN_AGENT_PORT='70000': expected an integer from 0 to 65535"),
        ({"RINGTRAIN_BACKEND": "smoke"}, "RINGTRAIN_BACKEND='smoke': expected one of ring, mpi"),
        ({"RINGTRAIN_SECRET_DIR": "/nowhere"}, "RINGTRAIN_SECRET_DIR='/nowhere': the directory does not exist"),
    ],
)
def test_a_wrong_variable_is_named(change: Mapping[str, str], message: str) -> None:
    """The error names variable, value and what was expected."""
    with pytest.raises(ConfigurationError) as wrong:
        AgentConfig.from_env({**WORKER, **change})
    assert message in str(wrong.value)


def test_half_a_secret(tmp_path: Path) -> None:
    """A directory with some of the certificates is not quietly used without them."""
    (tmp_path / "token").write_text("t")
    assert AgentConfig.from_env({**WORKER, "RINGTRAIN_SECRET_DIR": str(tmp_path)}).secrets.token == "t"
    (tmp_path / "ca.crt").write_text("pem")
    with pytest.raises(ConfigurationError, match=r"the directory lacks tls\.crt, tls\.key"):
        AgentConfig.from_env({**WORKER, "RINGTRAIN_SECRET_DIR": str(tmp_path)})


def test_secrets_are_not_shown() -> None:
    """Texts for tracebacks and logs contain neither key nor token."""
    from ringtrain.shared.secrets import Secrets
    from ringtrain.shared.tls import TlsCertificates

    assert "hidden" not in repr(Secrets(TlsCertificates(b"ca", b"certificate", b"hidden"), "hidden"))


def test_a_launcher_may_open_a_file_for_each_rank() -> None:
    """The limit is raised from any value, but not higher than necessary."""
    launcher = LauncherConfig.from_env({**JOB, "RINGTRAIN_NUM_WORKERS": "500"})
    assert launcher.open_files > 1000 + 500
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        allow_open_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, before[1])
        allow_open_files(250)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_open_files_are_said_at_the_start() -> None:
    """The error contains the required number and who can raise the limit; rank logs use the files that remain."""
    launcher = LauncherConfig.from_env({**JOB, "RINGTRAIN_NUM_WORKERS": "10000"})
    with pytest.raises(ConfigurationError, match=r"may open 4096 files .* needs 10272 for 10000 workers; raise"):
        open_log_limit(launcher, 4096)
    here = LauncherConfig.from_env({**JOB, "RINGTRAIN_PORTS_HELD": "1"})
    with pytest.raises(
        ConfigurationError, match=r"open 64 files on this machine .* this run needs 27\d; .* ulimit -n 27\d"
    ) as told:
        open_log_limit(here, 64)
    assert not re.search("container|node|worker", str(told.value))  # words of a cluster
    assert open_log_limit(launcher, 10_300) == 44
    assert open_log_limit(launcher, 1 << 20) == launcher.world_size
