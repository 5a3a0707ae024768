"""Time that mpirun takes to start ranks on several hosts: through ringtrain's agents, and through ssh.

    sudo .venv/bin/python bench/mpi/startup.py            # 4 ranks over 4 hosts, Open MPI 4 and 5, and MPICH

Hosts are network namespaces of this machine. Each has an agent and an sshd (Debian's, without PAM and DNS, which
makes logins fastest). The launcher runs one script, which alternates between both ways. A run lasts from the call of
mpirun until mpirun exits. Its program only calls MPI_Init and MPI_Finalize. Ringtrain's time includes the wrapper that
counts the ranks.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "plugins/mpi/tests")]  # hosts and jobs are made as in the tests

from mpi_jobs import MpiGang  # noqa: E402
from mpi_libraries import MPICH, OPEN_MPI, OPEN_MPI_5, Library  # noqa: E402
from support.namespaces import HostNet, network, why_not  # noqa: E402

PROGRAM = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n"
PORT = 2222
LIBRARIES = {"OpenMPI 4": OPEN_MPI, "OpenMPI 5": OPEN_MPI_5, "MPICH": MPICH}


@contextlib.contextmanager
def sshd_on(hosts: tuple[HostNet, ...], directory: Path) -> Iterator[Path]:
    """An sshd on each host; yields the ssh client's configuration."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = {
        "Port": PORT,
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "user.pub",
        "PermitRootLogin": "yes",
        "StrictModes": "no",
        "UsePAM": "no",
        "UseDNS": "no",
        "PidFile": "none",
        "MaxStartups": "100",
    }
    server = directory / "sshd_config"
    server.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    client = directory / "ssh_config"
    client.write_text(
        f"Host *\n  Port {PORT}\n  IdentityFile {directory}/user\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {os.devnull}\n  LogLevel ERROR\n"
    )
    running = [subprocess.Popen([*host.enter, "/usr/sbin/sshd", "-D", "-f", str(server)]) for host in hosts]
    try:
        yield client
    finally:
        for process in running:
            process.terminate()
            process.wait()


def ssh_command(library: Library, client: Path, hosts: tuple[HostNet, ...], directory: Path, address: str) -> str:
    """A shell command that runs the program with `ssh`, in the environment of the launcher's script."""
    ssh = directory / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {client} "$@"\n')
    ssh.chmod(0o755)
    file = directory / "ssh-hosts"
    unset = " ".join(f"-u {name}" for name in _ours(library))
    if library is not MPICH:
        file.write_text("".join(f"{host.address} slots=1\n" for host in hosts))
        chosen = f"OMPI_MCA_plm_rsh_agent={ssh} PRTE_MCA_plm_ssh_agent={ssh}"
        options = f"--hostfile {file}"
    else:
        file.write_text("".join(f"{host.address}:1\n" for host in hosts))
        chosen = f"HYDRA_LAUNCHER_EXEC={ssh}"
        options = f"-f {file} -localhost {address}"
    mpirun = shutil.which(library.mpirun)
    # In a file: in a job's command, mpirun by its path would be the one that goes through the agents.
    script = directory / "with-ssh"
    script.write_text(f"exec env {unset} {chosen} {mpirun} {options} -np {len(hosts)} {directory}/program\n")
    return f"sh {script}"


def _ours(library: Library) -> tuple[str, ...]:
    """Variables that the launcher sets and that a plain mpirun with ssh is to be without."""
    if library is MPICH:
        return ("HYDRA_HOST_FILE",)
    names = (
        "plm_rsh_no_tree_spawn",
        "orte_leave_session_attached",
        "orte_default_hostfile",
        "plm_rsh_num_concurrent",
    )
    prte = [name.replace("rsh", "ssh").replace("orte", "prte") for name in names]
    return (*(f"OMPI_MCA_{name}" for name in names), *(f"PRTE_MCA_{name}" for name in prte))


SCRIPT = """
import json, subprocess, sys, time
commands, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
for command in commands.values():
    subprocess.run(command, shell=True, check=True)
for _ in range(rounds):
    for name, command in commands.items():
        started = time.perf_counter()
        subprocess.run(command, shell=True, check=True)
        print("TIME", name, time.perf_counter() - started, flush=True)
"""


def measure(library: Library, ranks: int, rounds: int, directory: Path) -> dict[str, list[float]]:
    """Seconds of every run, by way."""
    source = directory / "program.c"
    source.write_text(PROGRAM)
    library.compile(source, directory / "program")
    with network(ranks + 1) as net, sshd_on(net.hosts[1:], directory) as client:
        gang = MpiGang(directory, net, 1, library.implementation, **library.need())
        try:
            ssh = ssh_command(library, client, net.hosts[1:], directory, net.hosts[0].address)
            commands = {"ringtrain": f"mpirun {directory}/program", "ssh": ssh}
            gang.agents()
            launcher = gang.launcher(sys.executable, "-c", SCRIPT, json.dumps(commands), str(rounds))
            if launcher.wait(900) != 0:
                raise SystemExit(f"the job failed:\n{launcher.err()}")
        finally:
            gang.close()
    found: dict[str, list[float]] = {name: [] for name in commands}
    for line in launcher.err().splitlines():
        if line.startswith("TIME "):
            _, name, seconds = line.split()
            found[name].append(float(seconds))
    return found


def main() -> None:
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mpi", choices=tuple(LIBRARIES), action="append", help="default: all that are installed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=ROOT / "bench/results/mpi-startup.json")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    if not shutil.which("sshd", path="/usr/sbin"):
        raise SystemExit("sshd is not installed (apt install openssh-server)")
    chosen = options.mpi or [name for name, library in LIBRARIES.items() if shutil.which(library.mpirun)]
    rows = []
    for name in chosen:
        library = LIBRARIES[name]
        with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as directory:
            found = measure(library, options.ranks, options.rounds, Path(directory))
        for way, seconds in found.items():
            spread = [round(value, 4) for value in statistics.quantiles(seconds, n=4)]
            rows.append({"mpi": name, "way": way, "ranks": options.ranks, "seconds": spread, "rounds": len(seconds)})
            low, median, high = spread
            print(f"{name:>9} {way:>10}  median {median:.3f} s  quartiles {low:.3f}–{high:.3f}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
