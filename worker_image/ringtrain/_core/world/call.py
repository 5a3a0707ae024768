"""One rank's part in one collective over the network: frames that the rank offers to peers, and frames that it reads
from peers."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NoReturn

from ringtrain import timeline
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.transport.base import FrameStream, StreamBroken, StreamEnd, TransportCaller, UnexpectedFrame
from ringtrain._core.wire.dtypes import dtype_name
from ringtrain._core.wire.failure import PullRefused
from ringtrain._core.wire.messages import WireFrame, WireStep, encoded_header, payload_octets
from ringtrain._core.wire.signature import WireSignature
from ringtrain._core.world.failure_state import PeerClosed, PeersStalled, RankActivity
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.offers import CollectiveOffer, Key
from ringtrain.errors import RingtrainError

# A slower link is considered broken. Only large collectives extend the timeout for it.
_SLOWEST_BYTES_PER_S: Final = 10e6

FramesFor = Callable[[int, TransportCaller], Iterator[WireFrame]]


def _no_frames(rank: int, caller: TransportCaller) -> Iterator[WireFrame]:
    return iter(())


@dataclass(frozen=True)
class CollectiveKey:
    """Identity of a collective, and the ranks that take part in it."""

    key: Key  # process set, sequence number
    peers: tuple[int, ...]  # world ranks from which this one reads
    takers: tuple[int, ...]  # world ranks that read from this one
    others: tuple[int, ...]  # all participants: peers may wait for any of them
    is_span: bool = True  # record a span, which must not overlap with others of the same thread


class WorldCall:
    """One collective's exchange of frames, as a context.

    At entry the context publishes the offer and opens a stream from each peer. A normal exit waits until this rank has
    read all frames of its peers, and all peers have read the frames of this rank. Afterwards buffers may be reused, and
    the process may end. An exit with an error makes every rank fail.
    """

    def __init__(
        self,
        member: WorldMembership,
        key: CollectiveKey,
        what: WireSignature,
        frames_for: FramesFor,
        total_bytes: int,
    ) -> None:
        self._member = member
        self._key = key
        self._what = what
        self._offer = CollectiveOffer(what, frames_for, set(key.takers))
        self._timeout_s = member.ring.stall_timeout_s + total_bytes / _SLOWEST_BYTES_PER_S
        self._started = 0.0
        self._streams: dict[int, FrameStream] = {}
        self._is_traced = timeline.active is not None
        self._span = timeline.NO_SPAN
        if key.is_span and self._is_traced:  # building the name takes as long as the check
            self._span = self.span(what.label, total_bytes)

    def span(self, name: str, nbytes: int) -> timeline.Span:
        """Return a timeline span, with arguments by which the same collective is found on other ranks."""
        process_set, sequence = self._key.key
        return timeline.span(name, "collective", bytes=nbytes, set=process_set, sequence=sequence)

    @property
    def _activity(self) -> RankActivity:
        return self._member.activity(self._key.key, self._what)

    def __enter__(self) -> "WorldCall":
        self._member.failure_state.check()
        self._started = time.monotonic()
        self._span.__enter__()
        self._member.offers.publish(self._key.key, self._offer, self._key.others)
        if (departed := self._member.offers.departed_rank(self._offer)) is not None:
            self._member.monitor.report(PeerClosed(departed, "", self._activity))
        try:
            self._member.prepare_pulls(self._key.peers)
            for peer in self._key.peers:
                request = self._member.pull_request(peer, self._key.key, self._what)
                self._streams[peer] = self._member.transport.pull(peer, request, self._timeout_s)
            # A failure reached in the meantime calls back at once.
            self._member.failure_state.on_reached(self._cancel)
        except BaseException as error:
            try:
                if isinstance(error, StreamBroken):
                    self._fail(peer, error)
                raise
            finally:
                self._release()
        return self

    def read(self, peer: int, step: WireStep, segment: int, into: Flat) -> None:
        """Wait for the next frame from `peer`, which must be segment `segment` of `step`, and store it in `into`."""
        if not self._is_traced:
            self._read(peer, step, segment, into)
            return
        with timeline.span(f"{step.name.lower()} {segment} from {peer}", "ring step", bytes=into.nbytes):
            self._read(peer, step, segment, into)

    def _read(self, peer: int, step: WireStep, segment: int, into: Flat) -> None:
        try:
            self._streams[peer].read_into(self._head(step, segment, into), payload_octets(into))
        except (UnexpectedFrame, StreamBroken, PullRefused) as error:
            self._went_wrong(peer, error)

    def frame(self, step: WireStep, segment: int, payload: Flat) -> WireFrame:
        """Return a frame of this collective with `payload`, which is not copied."""
        return WireFrame(self._head(step, segment, payload), payload_octets(payload))

    def frames(self, step: WireStep, parts: Iterable[Flat]) -> Iterator[WireFrame]:
        """Yield `parts` as frames of this collective, numbered as the segments of `step`."""
        for segment, part in enumerate(parts):
            yield self.frame(step, segment, part)

    def offer_changed(self) -> None:
        """Wake the threads that wait for a frame which this rank sends to a peer. Call it when a frame is ready."""
        self._member.offers.changed()

    def wait_until(self, ready: Callable[[], bool], caller: TransportCaller) -> None:
        if not ready():
            caller.flush()
        self._member.offers.wait_until(ready, caller)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif self._member.failure_state.failure is None and not self._member.left:
                self._member.give_up(self._activity, error)
        finally:
            self._release()

    def _release(self) -> None:
        """Release all buffers and streams; afterwards no other thread uses the buffers."""
        self._member.failure_state.forget(self._cancel)
        self._member.offers.withdraw(self._key.key)
        # It references this call: in a cycle the buffers would stay alive until garbage collection.
        self._offer.frames_for = _no_frames
        for stream in self._streams.values():
            stream.close()
        self._span.__exit__(None, None, None)

    def _head(self, step: WireStep, segment: int, payload: Flat) -> bytes:
        dtype, sequence = dtype_name(payload.dtype), self._key.key[1]
        return encoded_header(self._member.ring.generation, sequence, step, segment, dtype, payload.nbytes)

    def _finish(self) -> None:
        for peer, stream in self._streams.items():
            try:
                stream.end()
            except (UnexpectedFrame, StreamBroken, PullRefused) as error:
                self._went_wrong(peer, error)
        self._streams.clear()
        left = self._timeout_s - (time.monotonic() - self._started)
        if not self._member.all_taken(self._offer, left, lambda: self._activity):
            if self._member.offers.departed_rank(self._offer) is not None:  # the membership has reported it
                self._member.raise_failure(self._activity)
            self._stalled(tuple(sorted(self._offer.waiting_for)))

    def _went_wrong(self, peer: int, error: UnexpectedFrame | StreamBroken | PullRefused) -> NoReturn:
        if isinstance(error, UnexpectedFrame):
            defect = RingtrainError(f"stream from rank {peer} in {self._activity.label}: {error}")
            self._member.give_up(self._activity, defect)
            raise defect from error
        self._fail(peer, error)

    def _fail(self, peer: int, error: StreamBroken | PullRefused) -> NoReturn:
        """Report that the stream from `peer` failed, and raise the error on which all ranks agree."""
        if isinstance(error, PullRefused) and error.is_from_another_world:
            # The peer's process has joined its next world.
            self._member.monitor.report(PeerClosed(peer, "it has left this world", self._activity))
        elif isinstance(error, PullRefused):
            self._member.monitor.report(error.failure)
        elif error.how is StreamEnd.TIMEOUT:
            self._stalled((peer,))
        elif error.how is StreamEnd.CLOSED:
            self._member.monitor.report(PeerClosed(peer, error.detail, self._activity))
        self._member.raise_failure(self._activity)

    def _stalled(self, first: tuple[int, ...]) -> NoReturn:
        peers = (*first, *(rank for rank in self._key.others if rank not in first))
        self._member.monitor.report(PeersStalled(peers, time.monotonic() - self._started, self._activity))
        self._member.raise_failure(self._activity)

    def _cancel(self) -> None:
        for stream in list(self._streams.values()):
            stream.cancel()
