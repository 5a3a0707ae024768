"""A SLURM cluster on this machine: its controller, and each node's daemon in a separate network namespace."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.commands import completed
from support.namespaces import HostNet, network
from support.namespaces import why_not as why_no_namespaces

DEADLINE_S: Final = 120.0
PROGRAMS: Final = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol")
CONFIG: Final = """\
ClusterName=test
SlurmctldHost={control.name}({control.address})
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n/spool
SlurmdLogFile={folder}/%n/slurmd.log
TmpFS={folder}/%n/tmp
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return the reason for which no cluster can be started here; empty if it can."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"SLURM needs {', '.join(missing)} (apt install slurmctld slurmd slurm-client)"
    return why_no_namespaces()


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `nodes` in SLURM's order. `folder`: configuration and logs."""

    folder: Path
    nodes: tuple[HostNet, ...]

    def run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program on the first node, as a user who has logged in there. All nodes are idle then: SLURM would
        give a step that is to have one of them the second, while the step before is cleared away on the first."""
        self._await_idle()
        return self._run(*words, **variables)

    def _run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        python = str(Path(sys.executable).parent)
        env = self._environment() | {"PATH": f"{python}:{os.environ['PATH']}", **variables}
        command = [*self._enter(self.nodes[0]), *words]
        return completed(command, env=env)

    def start(self, stack: ExitStack) -> None:
        """Start the daemons."""
        (self.folder / "state").mkdir()
        for node in self.nodes:
            (self.folder / node.name / "spool").mkdir(parents=True)
            (self.folder / node.name / "tmp").mkdir()
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{node.address} {node.name}\n" for node in self.nodes)
        )
        nodes = (f"NodeName={node.name} NodeAddr={node.address} CPUs=4 State=UNKNOWN" for node in self.nodes)
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(control=self.nodes[0], folder=self.folder, nodes="\n".join(nodes))
        )
        self._daemon(stack, self.nodes[0], "slurmctld", "-D")
        for node in self.nodes:
            self._daemon(stack, node, "slurmd", "-D", "-N", node.name)

    def _await_idle(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (found := self._run("sinfo", "-h", "-o", "%D %t").stdout.strip()) != f"{len(self.nodes)} idle":
            assert time.monotonic() < deadline, f"sinfo says {found!r}, {self._logs()}"

    def _daemon(self, stack: ExitStack, node: HostNet, *words: str) -> None:
        with (self.folder / f"{words[0]}-{node.name}.out").open("w") as out:
            daemon = subprocess.Popen([*self._enter(node), *words], env=self._environment(), stdout=out, stderr=out)
        stack.callback(daemon.wait, 30)
        stack.callback(daemon.terminate)

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTRAIN_", "SLURM_"))}
        return clean | {"SLURM_CONF": f"{self.folder}/slurm.conf"}

    def _enter(self, node: HostNet) -> list[str]:
        """Return the node's network namespace and name, and names of nodes that all of them know."""
        mount = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return [*node.enter, "unshare", "--mount", "sh", "-c", mount, "sh"]

    def _logs(self) -> str:
        return "\n".join(log.read_text()[-2000:] for log in self.folder.rglob("*.log"))


@contextmanager
def cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """Run a cluster of `count` nodes with four CPUs each."""
    with ExitStack() as stack:
        made = Cluster(folder, stack.enter_context(network(count)).hosts)
        made.start(stack)
        yield made
