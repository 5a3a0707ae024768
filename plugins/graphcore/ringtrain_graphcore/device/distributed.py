"""Training of a device session on many ranks. The host reduces gradients; host or device updates the weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain import Average, ProcessSet, ReduceOp, global_process_set
from ringtrain.adapter import (
    BUCKET_BYTES,
    HostOptimizerGroups,
    NamedCollective,
    NamedReduction,
    NamedSubmission,
    OnHostOptimizer,
)
from ringtrain.errors import ConfigurationError
from ringtrain.optim import HostOptimizer, Rule
from ringtrain_graphcore.device.session import Array, DeviceSession, HostCallbacks, Inbound


@dataclass(frozen=True)
class Options:
    """Options of `DistributedOptimizer`: `process_set`, and some options of `ringtrain.optim.HostOptimizer`."""

    bucket_bytes: int = BUCKET_BYTES
    sharded: bool = True
    clip_norm: float | None = None
    schedule: Callable[[int], float] | None = None
    elastic: bool = False
    redundancy: int = 1
    process_set: ProcessSet = global_process_set


class DistributedOptimizer(OnHostOptimizer):
    """Optimizer that receives a session's gradients, averages them, updates in host memory, and returns the weights.

        session = …                                        # a device runtime's, with its weights loaded
        optimizer = DistributedOptimizer(AdamW(lr=1e-3), session, Options())
        session.run(batch)                                 # as often as there are batches

    A step ends when its last gradient has left the device; the device waits for a weight only when the next step needs
    it. The device stores neither gradients that were sent nor optimizer state.

    With `Options(elastic=True)` it is a value of `ringtrain.elastic.State`: commit after each step, when all its
    gradients have left the device. After a change of the world the device gets the weights of the last commit.

    Collective: every rank creates it with the same arguments. Rank 0's weights are sent to all ranks.
    """

    def __init__(self, optimizer: Rule, session: DeviceSession, options: Options | None = None) -> None:
        chosen = options or Options()
        self._session = session
        self._groups = HostOptimizerGroups(chosen.process_set)
        self._host = HostOptimizer(
            {name: session.read_weight(name) for name in session.parameters},
            optimizer,
            bucket_bytes=chosen.bucket_bytes,
            sharded=chosen.sharded,
            clip_norm=chosen.clip_norm,
            schedule=chosen.schedule,
            elastic=chosen.elastic,
            redundancy=chosen.redundancy,
            group=self._groups.first(chosen.elastic),
            update_during_backward=True,  # the device requests each weight when it needs it
        )
        self._left = set(session.parameters)
        self.write_back()
        session.connect(HostCallbacks(self._take, self._new_weight), Inbound.WEIGHTS)

    def state_dict(self, root: int | None = None) -> dict[str, Any]:
        """Return all ranks' weights and state as arrays by name, on `root` only if it is set. Collective."""
        return self._host.state_dict(root)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load weights and state, saved by any number of ranks, into host and device memory."""
        self._host.load_state_dict(state)
        self.write_back()

    def rollback(self, to: int | None = None) -> int:
        """Discard the step in progress and return to the last completed update or the one before; see
        `ringtrain.optim.HostOptimizer.rollback`. The device gets these weights only at `adopt`. Local."""
        updates = self._host.rollback(to)
        self._left = set(self._session.parameters)
        return updates

    def adopt(self) -> None:
        """Use the weights and state that `prepare` received, and copy the weights to the device. Local."""
        super().adopt()
        self.write_back()

    def write_back(self) -> None:
        """Copy every weight to the device."""
        self._host.wait_for()
        for name, values in self._host.weights.items():
            self._session.write_weight(name, values)

    def close(self) -> None:
        """Discard the step in progress, and free memory."""
        self._host.close()
        self._groups.close()

    def _take(self, name: str, gradient: Array) -> None:
        self._host.submit(name, gradient)
        self._left.discard(name)
        if not self._left:
            self._left.update(self._session.parameters)
            self._host.step(wait=False)

    def _new_weight(self, name: str) -> Array:
        self._host.wait_for(name)
        return self._host.weights[name]


def insert_host_allreduce(
    session: DeviceSession, op: Any = Average, process_set: ProcessSet = global_process_set
) -> None:
    """Make the host reduce gradients of `session` over `process_set`, before the device's own optimizer uses them.

    `op`: Average or Sum, or any other reduction. Ranks may send gradients in different orders.
    """
    chosen: ReduceOp = ReduceOp.of(op)
    how = NamedReduction(chosen.value, process_set)
    begun: dict[str, NamedSubmission] = {}

    def out(name: str, gradient: Array) -> None:
        begun[name] = NamedCollective.allreduce(how, name, "device").begin([np.array(gradient)])

    def back(name: str) -> Array:
        if name not in begun:
            raise ConfigurationError(
                f"the device requested the reduced gradient {name!r} before it sent its own gradient"
            )
        reduced: Array = begun.pop(name).result()[0]
        return reduced

    session.connect(HostCallbacks(out, back), Inbound.GRADIENTS)


def broadcast_weights(session: DeviceSession, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite the session's weights with those of `root_rank` (a rank of the world)."""
    begun = {
        name: NamedCollective.broadcast(root_rank, process_set, f"weights.{name}").begin([session.read_weight(name)])
        for name in session.parameters
    }
    for name, future in begun.items():
        session.write_weight(name, future.result()[0])
