"""Support for `jax.distributed.initialize()` without arguments in a Ringtrain job.

JAX itself reads the coordinator's address from a variable, and the number of processes through its list of cluster
types, to which this module adds Ringtrain.
"""

from __future__ import annotations

import contextlib
import os

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def add_to_clusters() -> None:
    """Register Ringtrain's variables with JAX before SLURM, MPI and Kubernetes.

    JAX has no public interface for this; if its private one is missing, `initialize` needs its arguments.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.clusters import ClusterEnv

        kinds = ClusterEnv._cluster_types

        class Ringtrain(ClusterEnv):  # JAX registers subclasses by their definition
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
                """Return the device index of this process if several share a pod; None if it is alone and uses all
                devices."""
                return int(os.environ["LOCAL_RANK"]) if os.environ.get("LOCAL_WORLD_SIZE", "1") != "1" else None

        kinds.insert(0, kinds.pop())
