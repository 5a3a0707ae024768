"""`jax.distributed.initialize()` without arguments, in the world that the agent's variables describe.

JAX itself reads the coordinator's address from a variable, and how many processes there are from the kinds of
cluster that it knows. Ringtrain's ranks are one more of these.
"""

from __future__ import annotations

import contextlib
import os

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def add_to_clusters() -> None:
    """Have JAX ask the variables of a rank before it looks for SLURM, MPI or Kubernetes.

    JAX has no public place for that: where its private one is not there, `initialize` needs its arguments.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.clusters import ClusterEnv

        kinds = ClusterEnv._cluster_types

        class Ringtrain(ClusterEnv):  # its definition is what makes JAX know it
            name = "ringtrain"

            @classmethod
            def is_env_present(cls) -> bool:
                return all(name in os.environ for name in _VARIABLES)

            @classmethod
            def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
                return os.environ["JAX_COORDINATOR_ADDRESS"]

            @classmethod
            def get_process_count(cls) -> int:
                return int(os.environ["JAX_NUM_PROCESSES"])

            @classmethod
            def get_process_id(cls) -> int:
                return int(os.environ["JAX_PROCESS_ID"])

            @classmethod
            def get_local_process_id(cls) -> int | None:
                """The device of this process, where several share a pod; one alone has all of the pod's."""
                return int(os.environ["LOCAL_RANK"]) if os.environ.get("LOCAL_WORLD_SIZE", "1") != "1" else None

        kinds.insert(0, kinds.pop())
