"""`horovodrun -H` over hosts that are network namespaces, with Debian's sshd."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from sshd import PORT, SshHosts, ssh_hosts, why_no_sshd
from support.commands import completed
from support.gang import DEADLINE_S, runs, until
from support.needs import need

pytestmark = pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd() or "there is sshd")
ROOT = Path(__file__).parents[3]
HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")
# Each rank says where it is, and what others of its host could find of its secrets.
SCRIPT = """
import os, pathlib, socket, numpy as np, ringtrain as rt
rt.init()
token = pathlib.Path(os.environ["RINGTRAIN_TOKEN_FILE"])
commands = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
seen = any(token.read_bytes() in command for command in commands)
modes = f"{token.stat().st_mode & 0o777:o} {token.parent.stat().st_mode & 0o777:o}"
total = rt.allreduce(np.ones(1000, np.float32), op=rt.Sum)
print(rt.rank(), rt.local_rank(), socket.gethostname(), total[0], modes, seen, os.environ["A"], token.parent)
"""
# Two sites average at every second step; each host counts what leaves it meanwhile, beside the weights' bytes.
SITES = """
import os, pathlib, numpy as np, ringtrain as rt
from ringtrain.diloco import DiLoCo
from ringtrain.optim import SGD
rt.init()
def sent():
    lines = [line.split(":") for line in pathlib.Path("/proc/net/dev").read_text().splitlines() if ":" in line]
    return sum(int(numbers.split()[8]) for name, numbers in lines if name.strip() != "lo")
params = {name: np.zeros(500_000, np.float32) for name in "abcd"}
diloco = DiLoCo(params, outer=SGD(lr=1.0), sync_every=2)
rt.barrier()
before = sent()
for step in range(4):
    gradients = {name: np.full(500_000, rt.rank() + step, np.float32) for name in params}
    diloco.average(gradients)
    for name in params:
        params[name] -= gradients[name]
    diloco.step()
rt.barrier()
after = sent()
print(rt.rank(), rt.site(), rt.sites(), params["a"][0], params["d"][-1], os.environ["RINGTRAIN_ENCRYPT"],
      (after - before) / 8e6)
"""
SLEEPER = """
import os, time, ringtrain as rt
rt.init()
print("here", os.getpid(), os.path.dirname(os.environ["RINGTRAIN_TOKEN_FILE"]), flush=True)
while True:
    time.sleep(0.1); rt.barrier()
"""
REPORTER = """
import time, ringtrain as rt
rt.init()
rt.report(1)
while True:
    time.sleep(0.1); rt.barrier()
"""
# What a page gives to who has no token; then its ranks, once both have reported, to who has it.
VISITOR = """
import json, sys, time, urllib.error, urllib.request
base, token = sys.argv[1:]
end = time.monotonic() + 60
while time.monotonic() < end:  # the link is there before the launcher listens
    try:
        urllib.request.urlopen(base + "/page/events", timeout=30)
    except urllib.error.HTTPError as error:
        print(error.code)
        break
    except urllib.error.URLError:
        time.sleep(0.1)
asked = urllib.request.Request(base + "/page/events", headers={"Authorization": "Bearer " + token})
with urllib.request.urlopen(asked, timeout=30) as stream:
    for line in stream:
        if line.startswith(b'data: {"live"'):
            ranks = [[rank["rank"], rank["state"], rank["step"]] for rank in json.loads(line[6:])["ranks"]]
            if all(rank[2] is not None for rank in ranks):
                break
print(json.dumps(ranks))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 2) as made:
        yield made


def start(
    hosts: SshHosts, directory: Path, *words: str, key: Path | None = None, inside: Sequence[str] = (), **env: str
) -> "subprocess.Popen[str]":
    """`horovodrun` on the first host."""
    options = ["--ssh-port", str(PORT), "--ssh-identity-file", str(key or hosts.key), "--start-timeout", "60"]
    settings = {"PATH": f"{hosts.bin}:{os.environ['PATH']}", "RINGTRAIN_TIMEOUT": "20", "A": "b c"}
    return subprocess.Popen(
        [*hosts.here.enter, *inside, HOROVODRUN, *options, *words],
        cwd=directory,
        env={**os.environ, **settings, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_on_two_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """Ranks are numbered host by host and meet; secrets are their user's alone, in no command line, and go."""
    run = start(hosts, tmp_path, "-np", "4", "-H", "node-a:2,node-b:2", sys.executable, "-c", SCRIPT)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, out + err
    lines = sorted(line.split(maxsplit=1)[1] for line in out.splitlines())
    a, b = (host.name for host in hosts.network.hosts[1:])
    assert [line.rpartition(" ")[0] for line in lines] == [
        f"{rank} {rank % 2} {host} 4.0 600 700 False b c" for rank, host in enumerate((a, a, b, b))
    ]
    assert not any(Path(line.split()[-1]).exists() for line in lines)


def test_sites_of_two_hosts_exchange_each_byte_once(hosts: SshHosts, tmp_path: Path) -> None:
    """Each knows its site; of 8 MB, four ranks of a site send half to the other, and half of what became of it,
    encrypted."""
    pytest.importorskip("ringtrain_diloco")
    run = start(hosts, tmp_path, "-np", "8", "-H", "node-a:4@x,node-b:4@y", sys.executable, "-c", SITES)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, out + err
    lines = sorted(line.split(maxsplit=1)[1] for line in out.splitlines())
    told = [line.rpartition(" ") for line in lines]
    sites = {"x": [0, 1, 2, 3], "y": [4, 5, 6, 7]}
    # Gradients of rank + step: their mean over all ranks in four steps is 3.5 * 4 + 6.
    assert [line for line, *_ in told] == [f"{rank} {'xy'[rank // 4]} {sites} -20.0 -20.0 sites" for rank in range(8)]
    for *_, synchronizations in told:
        assert 2 <= float(synchronizations) < 2.2, "8 MB twice: half of the gradients and half of the weights each"


def test_this_machine_and_another_with_encrypted_tensors(hosts: SshHosts, tmp_path: Path) -> None:
    """From a hostfile; the agent of this machine is reached at the address by which the other one sees it."""
    (tmp_path / "hosts").write_text("localhost slots=1\nnode-b slots=1\n")
    words = ["-np", "2", "-hostfile", "hosts", sys.executable, "-c", SCRIPT]
    run = start(hosts, tmp_path, *words, RINGTRAIN_ENCRYPT="tensors")
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, out + err
    assert [line.split()[1:5] for line in sorted(out.splitlines())] == [
        ["0", "0", hosts.here.name, "2.0"],
        ["1", "0", hosts.network.hosts[2].name, "2.0"],
    ]


def test_jax_on_two_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """Its processes find each other by `jax.distributed.initialize()`, which has no arguments."""
    need("jax")
    known = "".join(f"{host.address} {host.name}\n" for host in hosts.network.hosts)
    (tmp_path / "hosts").write_text(known)  # JAX's gloo asks for the address of its host's name
    named = ["unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/hosts /etc/hosts && exec "$@"', "sh"]
    script = str(ROOT / "examples/frameworks/jax_distributed.py")
    run = start(hosts, tmp_path, "-np", "2", "-H", "node-a:1,node-b:1", *named, sys.executable, script)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0, out + err
    assert sorted(re.findall("process . of 2: loss 0.0000", out)) == [
        f"process {index} of 2: loss 0.0000" for index in range(2)
    ]


def test_lines_of_all_hosts_that_no_file_takes_are_counted(hosts: SshHosts, tmp_path: Path) -> None:
    """As where the launcher's log directory is full: this terminal has them, and the run does not end with 0."""
    script = "for n in $(seq 20000); do echo $RANK $n; done"
    limited = ("prlimit", f"--fsize={64 << 10}")
    words = ["-np", "2", "-H", "localhost:1,node-b:1", "sh", "-c", script]
    run = start(hosts, tmp_path, *words, inside=limited, RINGTRAIN_TIMEOUT="5", RINGTRAIN_LOG_DIR=str(tmp_path / "r"))
    out, err = run.communicate(timeout=DEADLINE_S)
    shown = f"{out}\n{err}".splitlines()
    for rank in range(2):
        found = [line.split()[-1] for line in shown if f"[{rank}] {rank} " in line]
        assert found == [str(number) for number in range(1, 20001)]
    (job,) = tmp_path.glob("**/job.log")
    kept = job.read_text().count("\n")
    assert f"{2 * 20000 - kept} log lines could not be written to " in err
    assert run.returncode == 74


def test_a_failed_rank_of_another_host(hosts: SshHosts, tmp_path: Path) -> None:
    """Is named as the first cause, and its exit status is the run's; interfaces may be named."""
    fails = "import os, sys; sys.exit(9 if os.environ['RANK'] == '1' else 0)"
    words = ["-np", "2", "-H", "node-a:1,node-b:1", "--network-interfaces", "nothing,eth0", sys.executable, "-c"]
    run = start(hosts, tmp_path, *words, fails)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 9, out + err
    assert "First failure: rank 1, RankFailed, exit code 9" in err


def ranks_of(run: "subprocess.Popen[str]", count: int) -> tuple[list[psutil.Process], list[Path]]:
    """The ranks that have said where they are, and the directories of their secrets."""
    assert run.stdout is not None
    said = [re.search(r"here (\d+) (\S+)", run.stdout.readline()) for _ in range(count)]
    found = [match.groups() for match in said if match]
    assert len(found) == count
    return [psutil.Process(int(pid)) for pid, _ in found], [Path(path) for _, path in found]


def test_the_page_of_a_run_on_several_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """The link that --ui prints shows the ranks of all hosts, and nothing to who has not its token."""
    words = ["-np", "2", "--ui", "-H", "node-a:1,node-b:1", sys.executable, "-c", REPORTER]
    run = start(hosts, tmp_path, *words)
    try:
        assert run.stderr is not None
        lines = iter(run.stderr.readline, "")
        link = next(match for line in lines if (match := re.fullmatch(r"page: (\S+)/\?token=(\w+)\n", line)))
        seen = completed(
            [*hosts.here.enter, sys.executable, "-c", VISITOR, *link.groups()], timeout=DEADLINE_S, check=True
        )
        refused, ranks = seen.stdout.splitlines()
        assert refused == "401"
        assert json.loads(ranks) == [[0, "Running", 1], [1, "Running", 1]]
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=DEADLINE_S)


def test_a_run_that_is_killed_leaves_nothing(hosts: SshHosts, tmp_path: Path) -> None:
    """SIGKILL of the run ends the connections of ssh, and with them agents, ranks and files of other hosts."""
    run = start(hosts, tmp_path, "-np", "2", "-H", "node-a:1,node-b:1", sys.executable, "-c", SLEEPER)
    processes, directories = ranks_of(run, 2)
    agents = [parent for process in processes for parent in process.parents()[:2]]
    run.kill()
    run.communicate(timeout=DEADLINE_S)
    until("no process left", lambda: not any(runs(process) for process in (*processes, *agents)))
    until("no file left", lambda: not any(path.exists() for path in directories))


def test_a_host_that_is_cut_off(hosts: SshHosts, tmp_path: Path) -> None:
    """The run fails and names what was lost; what ran there ends by itself."""
    run = start(
        hosts,
        tmp_path,
        "-np",
        "2",
        "-H",
        "node-a:1,node-b:1",
        sys.executable,
        "-c",
        SLEEPER,
        RINGTRAIN_TIMEOUT="6",
    )
    processes, directories = ranks_of(run, 2)
    hosts.network.cut(hosts.network.hosts[2])
    try:
        _, err = run.communicate(timeout=2 * DEADLINE_S)
        assert run.returncode not in (0, None)
        assert re.search(r"First failure: .*(rank 1|the job), (AgentLost|RankFailed)", err), err
        until("no process left", lambda: not any(runs(process) for process in processes))
        until("no file left", lambda: not any(path.exists() for path in directories), 2 * DEADLINE_S)
    finally:
        hosts.network.mend(hosts.network.hosts[2])


def test_a_host_that_cannot_start_its_agent(hosts: SshHosts, tmp_path: Path) -> None:
    """The run ends at once with the host's name and reason: here the first host alone has the interface."""
    options = ["--network-interfaces", "of-the-first", "-np", "1", "-H", "node-b:1", "true"]
    name = hosts.here.name
    subprocess.run(["ip", "-n", name, "link", "add", "of-the-first", "type", "bridge"], check=True)
    subprocess.run(["ip", "-n", name, "addr", "add", "10.99.0.1/24", "dev", "of-the-first"], check=True)
    run = start(hosts, tmp_path, *options)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 64, out + err
    assert "host node-b exited with 64: --network-interfaces of-the-first: none of these interfaces has" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("node-z", r"cannot reach host node-z over ssh: .*Could not resolve hostname node-z.*the name in -H"),
        ("10.213.77.11", r"cannot reach host 10\.213\.77\.11 over ssh: .*Permission denied.*ssh-copy-id"),
        ("known", r"cannot reach host node-a over ssh: Host key verification failed.*accept the host's key"),
    ],
    ids=["no-such-name", "asks-for-a-password", "unknown-host-key"],
)
def test_a_host_that_cannot_be_had(hosts: SshHosts, tmp_path: Path, name: str, message: str) -> None:
    """The run ends at once with its name, ssh's reason and the way out; no rank is started."""
    words = ["-H", f"{name}:1", sys.executable, "-c", "print('ran')"]
    key = hosts.key
    if name == "known":
        words[1] = "node-a:1"
        known = hosts.known.read_text()
        hosts.known.write_text("")
    elif name != "node-z":
        key = tmp_path / "another"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    try:
        out, err = start(hosts, tmp_path, "-np", "1", *words, key=key).communicate(timeout=DEADLINE_S)
    finally:
        if name == "known":
            hosts.known.write_text(known)
    assert out == ""
    assert re.search(message, " ".join(err.split())), err
