"""`ringtrain run` on another host, with a program in place of ssh; and the agent that runs on that host."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from support.deadlines import patient

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.hosts import Host
from ringtrain_hosts.remote_agent import GREETING, RemoteAgentOrder, first_address
from ringtrain_hosts.ssh import HostDeadlines, SshOptions, connect_ssh_hosts, portable_environment
from ringtrain_job.cli.certificates import SECRET_FILES, write_secrets

pytestmark = pytest.mark.slow

DEADLINE_S = patient(60.0)


def ssh_that(script: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in the place of ssh."""
    path = directory / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'sh: 1: exec: python: not found' >&2; exit 127",
            "host a has no ringtrain at this",
        ),
        (
            "echo '/bin/python: No module named ringtrain' >&2; exit 1",
            "install Python and ringtrain at the",
        ),
        (
            f"""echo '{GREETING}{{"version": "0.0.1", "run_address": ""}}'; sleep 60""",
            "host a has ringtrain 0.0.1",
        ),
        ("echo a banner; exec sleep 60", r"host a did not answer within 1 s \(--start-timeout\)"),
        ("exit 3", "host a: ringtrain remote-agent exited with 3: no output"),
        (
            "echo 'ssh: connect to host a port 22: Connection refused' >&2; exit 255",
            r"ssh: .*Connection refused",
        ),
    ],
    ids=["no-python", "no-ringtrain", "another-version", "says-nothing", "unknown", "refused"],
)
def test_a_host_that_cannot_be_had(script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the host and what was said; nothing of ssh is left."""
    ssh_that(script, tmp_path, monkeypatch)
    deadlines = HostDeadlines(1.0 if "banner" in script else DEADLINE_S, 8, 0)
    with ExitStack() as stack, pytest.raises(ConfigurationError, match=message):
        connect_ssh_hosts(stack, [Host("a", 1)], SshOptions(), deadlines)


def test_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack, pytest.raises(ConfigurationError, match="apt install openssh-client"):
        connect_ssh_hosts(stack, [Host("a", 1)], SshOptions(), HostDeadlines(DEADLINE_S, 8, 1))


def test_ssh_asks_nothing_and_takes_no_host_for_an_option() -> None:
    """Port and key are passed on; deadlines are those of the run."""
    command = SshOptions(2222, "key").command("me@a", HostDeadlines(start_s=600, silence_s=60, end_s=40))
    assert command[:2] == ["ssh", "-T"]
    assert [command[i + 1] for i, word in enumerate(command) if word == "-o"] == [
        "BatchMode=yes",
        "ConnectTimeout=30",
        "ServerAliveInterval=15",
    ]
    assert command[-7:] == [
        *("-p", "2222", "-i", "key", "--", "me@a"),
        f"exec {sys.executable} -m ringtrain remote-agent",
    ]


def test_variables_that_belong_to_a_host_stay_there() -> None:
    """All others go along."""
    assert portable_environment(
        {"HOME": "/root", "SSH_AUTH_SOCK": "x", "XDG_RUNTIME_DIR": "y", "A": "1", "PATH": "p"}
    ) == {
        "A": "1",
        "PATH": "p",
    }


def test_certificates_of_a_run(tmp_path: Path) -> None:
    """Each role has its own, of one CA, for names of role and run; only its user can read them."""
    write_secrets(tmp_path, "uid-1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launcher", "worker"]
    sides = {}
    for role, kind in (("launcher", ssl.PROTOCOL_TLS_SERVER), ("worker", ssl.PROTOCOL_TLS_CLIENT)):
        directory = tmp_path / role
        assert sorted(path.name for path in directory.iterdir()) == sorted(SECRET_FILES)
        assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
        context = ssl.SSLContext(kind)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(directory / "ca.crt")
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        sides[role] = context
    assert names_seen(sides["launcher"], sides["worker"], "launcher.uid-1.ringtrain") == [
        *("launcher.uid-1.ringtrain", "worker.uid-1.ringtrain"),
    ]
    assert (tmp_path / "launcher/token").read_text() == (tmp_path / "worker/token").read_text()


def names_seen(server: ssl.SSLContext, client: ssl.SSLContext, expected: str) -> list[str]:
    """The names in the certificates that two sides show each other."""
    ways = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(*ways, server_side=True),
        client.wrap_bio(*reversed(ways), server_hostname=expected),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return [str(side.getpeercert()["subjectAltName"][0][1]) for side in reversed(sides)]  # type: ignore[index]


def test_no_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what it is for, and what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"several hosts needs .*apt install openssl"):
        write_secrets(tmp_path, "uid-1")


def test_interfaces() -> None:
    """The first that is there counts; with none of them the error has those of this host."""
    assert first_address(["nothing0", "lo"]) == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"nothing0: none of these interfaces has an IPv4 .*has .*lo"):
        first_address(["nothing0"])


def remote_agent(directory: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "ringtrain", "remote-agent"],
        env={**os.environ, "TMPDIR": str(directory), "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def order(place: Path, **changed: object) -> bytes:
    """Return the order that a run sends: an agent whose launcher does not exist."""
    environment = {
        contract.ENV_JOB_NAME: "job",
        contract.ENV_JOB_NAMESPACE: "local",
        contract.ENV_JOB_UID: "uid-1",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_NUM_WORKERS: "1",
        contract.ENV_WORKER_INDEX: "0",
        contract.ENV_RING_PORT_BASE: "0",
        contract.ENV_MASTER_PORT: "0",
        contract.ENV_TF_PORT_BASE: "0",
        contract.ENV_LAUNCHER_ADDRESS: "127.0.0.1:1",
        contract.ENV_TERMINATION_MESSAGE_PATH: os.devnull,
    }
    secrets = place / "secrets"
    if not secrets.exists():
        secrets.mkdir()
        write_secrets(secrets, "uid-1")
    files = {file: (secrets / "worker" / file).read_text() for file in SECRET_FILES}
    given = {"directory": str(place), "interfaces": (), "level": "info", "command": ("true",), **changed}
    return json.dumps(asdict(RemoteAgentOrder(files, environment, **given))).encode() + b"\n"  # type: ignore[arg-type]


def test_what_runs_on_another_host_ends_with_its_connection(tmp_path: Path) -> None:
    """It greets, runs an agent whose secrets are its user's alone, and leaves neither process nor file."""
    (tmp_path / "tmp").mkdir()
    remote = remote_agent(tmp_path / "tmp")
    assert remote.stdin is not None
    assert remote.stderr is not None
    greeting = remote.stdout.readline().decode()
    assert json.loads(greeting.removeprefix(GREETING))["run_address"] == "10.0.0.1"
    remote.stdin.write(order(tmp_path))
    remote.stdin.flush()
    assert b"worker 0 connects to the launcher" in remote.stderr.readline()
    (secrets,) = (tmp_path / "tmp").glob("ringtrain-*")
    assert secrets.stat().st_mode & 0o777 == 0o700
    began = time.monotonic()
    remote.stdin.close()
    assert remote.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert time.monotonic() - began < DEADLINE_S
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_connection_that_ends_before_the_order(tmp_path: Path) -> None:
    """Nothing is started."""
    out, err = remote_agent(tmp_path).communicate(b"", timeout=DEADLINE_S)
    assert out.startswith(GREETING.encode())
    assert err == b""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"directory": "/nothing/here"}, "cannot enter the run's working directory /nothing/here"),
        ({"interfaces": ("nothing0",)}, "--network-interfaces nothing0: none of these interfaces has an IPv4"),
    ],
    ids=["no-directory", "no-interface"],
)
def test_an_order_that_cannot_be_followed(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    """The last line says why, which the run repeats with the host's name."""
    remote = remote_agent(tmp_path)
    _, err = remote.communicate(order(tmp_path, **changed), timeout=DEADLINE_S)
    assert remote.returncode == contract.EXIT_BAD_CONFIGURATION
    assert message in err.decode()
