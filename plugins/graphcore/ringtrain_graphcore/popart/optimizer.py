"""Classes and functions of Graphcore's Horovod extension for PopART."""

from typing import Any

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain_graphcore import device
from ringtrain_graphcore.device.session import DeviceSession
from ringtrain_graphcore.popart.session import PopartSession


class DistributedOptimizer:
    """Reduction of a PopART session's gradients over all ranks on the host; PopART's `optimizer` updates on the device.

        options.hostAllReduce = True                       # before the session is made
        session = popart.TrainingSession(…, userOptions=options)
        …                                                  # prepareDevice, weightsFromHost
        optimizer = hvd.DistributedOptimizer(optimizer, session, options)
        optimizer.insert_host_allreduce()
        hvd.broadcast_weights(session, root_rank=0)

    `session`: a `popart.TrainingSession`, or a `ringtrain.device.DeviceSession`, whose options may be None.
    """

    def __init__(self, optimizer: Any, session: Any, options: Any = None) -> None:
        """Accept `session` for training. Raises ConfigurationError if it does not pass its gradients to the host."""
        self.optimizer = optimizer
        self._session = _popart_device_session(session)
        if isinstance(self._session, PopartSession) and getattr(options, "hostAllReduce", None) is not True:
            raise ConfigurationError(
                f"the session options have hostAllReduce = {getattr(options, 'hostAllReduce', None)!r}: gradients "
                "would not leave the device; set options.hostAllReduce = True before the session is made"
            )

    def insert_host_allreduce(self) -> None:
        """Make the host average each gradient over all ranks, before the device's optimizer uses it. Local."""
        device.insert_host_allreduce(self._session)


def broadcast_weights(session: Any, root_rank: int = 0) -> None:
    """Overwrite the session's weights with those of `root_rank`. Collective; not while a step runs."""
    adapted = _popart_device_session(session)
    device.broadcast_weights(adapted, root_rank)
    if isinstance(adapted, PopartSession):
        adapted.flush()


def _popart_device_session(session: Any) -> DeviceSession:
    if hasattr(session, "getHostReduceStreamIds"):
        return PopartSession(session)
    if all(hasattr(session, name) for name in ("parameters", "read_weight", "write_weight", "connect")):
        found: DeviceSession = session
        return found
    raise ConfigurationError(
        f"session is {kind_of(session)}; expected a popart.TrainingSession or a ringtrain.device.DeviceSession"
    )
