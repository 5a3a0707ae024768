"""A name of its own for each worker's daemon.

Open MPI 5's daemon (prted) tells mpirun the host's name, by which PMIx then knows who is where. Workers on one
host (`dtj local`, hostNetwork) would all be one node to it: each daemon takes all their ranks for its own, waits
for them in MPI_Init, and waits forever. No option of prted sets the name, so a library preloaded into it does.
The ranks themselves see the host as it is.
"""

import importlib.util
import logging
import socket
from collections.abc import Mapping

from ringtrain_job.mpi.rank_wrapper import NODE_NAME, OWN_PRELOAD

log = logging.getLogger(__name__)

_LIBRARY = "ringtrain_job.agent.mpi._node_name"


def node_name_variables(command: str, pod: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables that make `pod` the host's name for the daemon of `command`; none where that is not needed."""
    if "prted" not in command or socket.gethostname() == pod:
        return {}
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None or spec.origin is None:
        log.warning(
            "ringtrain was installed without a C compiler: with Open MPI 5, workers that share the host name %s "
            "would wait for each other in MPI_Init",
            socket.gethostname(),
        )
        return {}
    own = inherited.get("LD_PRELOAD", "")
    return {NODE_NAME: pod, OWN_PRELOAD: own, "LD_PRELOAD": f"{spec.origin}:{own}".rstrip(":")}
