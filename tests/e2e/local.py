"""`make e2e-local`: run a command with KUBECONFIG of a cluster on this machine whose nodes are no machines.

etcd, kube-apiserver and kube-controller-manager are real (KUBEBUILDER_ASSETS; RBAC and Pod Security on). Its two
nodes run pods as local processes of this environment, whatever their images hold. All ends with the command.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.apiserver import ControlPlane, why_unavailable  # noqa: E402
from support.kubelet import Kubelet, ProcessRuntime  # noqa: E402

from ringtrain_operator.cluster.api.client import ApiClient  # noqa: E402

# What a Deployment needs to become pods, and a PodDisruptionBudget to be read.
WORKLOADS = "deployment-controller,replicaset-controller,disruption-controller"
ENTRYPOINTS = {"operator": ("ringtrain-operator",)}  # as the Dockerfile has it


def main(command: Sequence[str]) -> int:
    """The exit code of `command`; 2 if the control plane's programs are not there."""
    if reason := why_unavailable():
        print(f"make e2e-local {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ringtrain-e2e-") as folder:
        plane = ControlPlane.start(Path(folder), more_controllers=WORKLOADS)
        try:
            return asyncio.run(_run(plane, command))
        finally:
            plane.stop()


async def _run(plane: ControlPlane, command: Sequence[str]) -> int:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    runtime = ProcessRuntime(ROOT, {"PATH": programs}, ENTRYPOINTS)
    async with (
        ApiClient(plane.connection(), user_agent="kubelet") as api,
        Kubelet(api, runtime, plane.folder / "nodes"),
    ):
        env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig())}
        process = await asyncio.create_subprocess_exec(*command, env=env, cwd=ROOT)
        return await process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
