"""Values to protobuf and back: the one border where generated messages are touched field by field."""

from typing import Any

from ringtrain.control.model import (
    Failure,
    Outcome,
    RankPhase,
    RankState,
    Reason,
    Registration,
    Verdict,
    World,
)
from ringtrain.gen import coordinator_pb2 as pb


def rank_to_wire(state: RankState) -> Any:
    """`state` as a message."""
    return pb.RankState(
        rank=state.rank,
        phase=state.phase.value,
        exit_code=state.exit_code,
        signal=state.signal,
        exit_order=state.exit_order,
        exited_ago_s=state.exited_ago_s,
        log_tail=[_utf8(line) for line in state.log_tail],
        reason=state.reason.value if state.reason else "",
        message=_utf8(state.message),
    )


def _utf8(text: str) -> str:
    """`text` as protobuf takes it: a program's name may hold bytes that are no text (lone surrogates here)."""
    return text.encode("utf-8", "replace").decode()


def rank_from_wire(message: Any) -> RankState:
    """The state in `message`; ValueError for a phase that does not exist."""
    return RankState(
        rank=message.rank,
        phase=RankPhase(message.phase),
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        signal=message.signal,
        exit_order=message.exit_order,
        exited_ago_s=message.exited_ago_s,
        log_tail=tuple(message.log_tail),
        reason=Reason(message.reason) if message.reason else None,
        message=message.message,
    )


def registration_to_wire(registration: Registration) -> Any:
    """`registration` as a message."""
    return pb.RegisterRequest(
        job_uid=registration.uid,
        attempt=registration.attempt,
        worker_index=registration.worker_index,
        slots=registration.slots,
        instance=registration.instance,
        pod=registration.pod,
        node=registration.node,
        address=registration.address,
        agent_port=registration.agent_port,
        ring_ports=registration.ring_ports,
        tf_ports=registration.tf_ports,
        master_port=registration.master_port,
        ranks=[rank_to_wire(state) for state in registration.ranks],
    )


def registration_from_wire(message: Any) -> Registration:
    """The registration in `message`."""
    return Registration(
        uid=message.job_uid,
        attempt=message.attempt,
        worker_index=message.worker_index,
        slots=message.slots,
        instance=message.instance,
        pod=message.pod,
        node=message.node,
        address=message.address,
        agent_port=message.agent_port,
        ring_ports=tuple(message.ring_ports),
        tf_ports=tuple(message.tf_ports),
        master_port=message.master_port,
        ranks=tuple(rank_from_wire(state) for state in message.ranks),
    )


def world_to_wire(world: World) -> Any:
    """`world` as a message."""
    return pb.World(
        attempt=world.attempt,
        ring_addresses=world.ring_addresses,
        tf_addresses=world.tf_addresses,
        master_address=world.master_address,
        master_port=world.master_port,
    )


def world_from_wire(message: Any) -> World:
    """The world in `message`."""
    return World(
        attempt=message.attempt,
        ring_addresses=tuple(message.ring_addresses),
        tf_addresses=tuple(message.tf_addresses),
        master_address=message.master_address,
        master_port=message.master_port,
    )


def verdict_to_wire(verdict: Verdict) -> Any:
    """`verdict` as a message."""
    message = pb.Verdict(
        outcome=verdict.outcome.value, exit_code=verdict.exit_code, ranks_succeeded=verdict.ranks_succeeded
    )
    failure = verdict.failure
    if failure is not None:
        message.failure.CopyFrom(
            pb.Failure(
                rank=failure.rank,
                pod=failure.pod,
                node=failure.node,
                exit_code=failure.exit_code,
                signal=failure.signal,
                reason=failure.reason.value,
                message=_utf8(failure.message),
                log_tail=[_utf8(line) for line in failure.log_tail],
            )
        )
    return message


def verdict_from_wire(message: Any) -> Verdict:
    """The verdict in `message`."""
    failure = None
    if message.HasField("failure"):
        inner = message.failure
        failure = Failure(
            reason=Reason(inner.reason),
            message=inner.message,
            rank=inner.rank if inner.HasField("rank") else None,
            pod=inner.pod,
            node=inner.node,
            exit_code=inner.exit_code if inner.HasField("exit_code") else None,
            signal=inner.signal,
            log_tail=tuple(inner.log_tail),
        )
    return Verdict(Outcome(message.outcome), message.exit_code, message.ranks_succeeded, failure)
