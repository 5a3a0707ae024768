"""Exchange of addresses through rank 0, for ranks that know only the address of rank 0.

One line of JSON in each direction. With a token both lines carry a proof; a caller without one is refused.
"""

import json
import secrets
import selectors
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ringtrain.errors import ConfigurationError, in_ranges
from ringtrain.shared import authentication
from ringtrain.shared.address import listening_address, split_address

_MOST_LINE_BYTES: Final = 1024
_MOST_UNAUTHENTICATED: Final = 64
_UNAUTHENTICATED_S: Final = 10.0
_AGAIN_S: Final = 0.1
_TICK_S: Final = 0.5


@dataclass(frozen=True)
class RendezvousPoint:
    """Address at which rank 0 collects all addresses, and texts for error messages.

    `where`: host and port. `size_name`: the variable with the world's size. `start`: text on how to start all ranks.
    `port_taken`: text on what to do if the port is in use.
    """

    where: tuple[str, int]
    size_name: str = "WORLD_SIZE"
    start: str = "start every rank, with the same MASTER_ADDR and MASTER_PORT"
    port_taken: str = "choose another MASTER_PORT, or set RINGTRAIN_RING_ADDRESSES"


def gather_addresses(
    rank: int, size: int, point: RendezvousPoint, own: str, token: bytes | None, timeout_s: float
) -> tuple[str, ...]:
    """Return the addresses of all ranks, by rank, exchanged through rank 0. Raises ConfigurationError if that fails
    within `timeout_s`."""
    end = time.monotonic() + timeout_s
    if rank == 0:
        return _RendezvousServer(size, own, token, point, timeout_s).run(end)
    return _ask_rank_0(rank, size, point, own, token, end, timeout_s)


@dataclass(eq=False)
class _RendezvousCaller:
    """Connection of one rank to rank 0. `rank`: -1 until its message has arrived."""

    sock: socket.socket
    since: float
    line: bytearray = field(default_factory=bytearray)
    rank: int = -1
    nonce: str = ""


class _RendezvousServer:
    """Server on rank 0 that collects the addresses of all ranks. Limits callers that are not identified yet."""

    def __init__(self, size: int, own: str, token: bytes | None, point: RendezvousPoint, timeout_s: float) -> None:
        self._size = size
        self._token = token
        self._point = point
        self._timeout_s = timeout_s
        self._addresses = {0: own}
        self._selector = selectors.DefaultSelector()
        self._callers: dict[_RendezvousCaller, None] = {}  # oldest first

    def run(self, end: float) -> tuple[str, ...]:
        with closing(self._selector), closing(_rendezvous_listener(self._point)) as listener:
            self._selector.register(listener, selectors.EVENT_READ)
            try:
                while len(self._addresses) < self._size:
                    self._turn(listener, end)
                return self._send_addresses()
            finally:
                for caller in list(self._callers):
                    self._drop(caller)

    def _turn(self, listener: socket.socket, end: float) -> None:
        now = time.monotonic()
        if now >= end:
            missing = [rank for rank in range(self._size) if rank not in self._addresses]
            raise ConfigurationError(
                f"rank(s) {in_ranges(missing)} of {self._size} did not call ringtrain.init() within "
                f"{self._timeout_s:g} s (waited for by rank 0); {self._point.start}"
            )
        for key, _ in self._selector.select(min(end - now, _TICK_S)):
            if key.fileobj is listener:
                self._accept(listener)
            else:
                self._read(key.data)
        unidentified = [caller for caller in self._callers if caller.rank < 0]
        for index, caller in enumerate(unidentified):
            if len(unidentified) - index > _MOST_UNAUTHENTICATED or now - caller.since > _UNAUTHENTICATED_S:
                self._drop(caller)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            sock, _ = listener.accept()
            sock.setblocking(False)
            caller = _RendezvousCaller(sock, time.monotonic())
            self._callers[caller] = None
            self._selector.register(sock, selectors.EVENT_READ, caller)

    def _read(self, caller: _RendezvousCaller) -> None:
        try:
            data = caller.sock.recv(_MOST_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.line += data
        if not data or len(caller.line) > _MOST_LINE_BYTES:
            self._drop(caller)
        elif caller.line.endswith(b"\n") and caller.rank < 0:
            self._process_line(caller)

    def _process_line(self, caller: _RendezvousCaller) -> None:
        """Store the address in the caller's message, or send the caller the reason why it is refused."""
        message = _parsed_rendezvous_line(bytes(caller.line), rank=int, size=int, address=str, nonce=str, proof=str)
        if message is None:
            self._drop(caller)
            return
        rank, address = message["rank"], message["address"]
        if not authentication.is_same_proof(_rendezvous_caller_proof(self._token, message), message["proof"]):
            refusal = f"rank {rank} does not have the token of rank 0; check RINGTRAIN_TOKEN_FILE on both"
        elif message["size"] != self._size:
            sizes = f"rank 0 expects a world of {self._size}, rank {rank} of {message['size']}"
            refusal = f"{sizes} ranks; set the same {self._point.size_name} on every rank"
        elif not 0 < rank < self._size or self._addresses.get(rank, address) != address:
            refusal = f"two processes claim to be rank {rank}; start each rank once"
        else:
            self._addresses[rank] = address
            caller.rank, caller.nonce = rank, message["nonce"]
            return
        with suppress(OSError):
            caller.sock.sendall(_rendezvous_line({"refused": refusal}))
        self._drop(caller)

    def _send_addresses(self) -> tuple[str, ...]:
        addresses = tuple(self._addresses[rank] for rank in range(self._size))
        for caller in self._callers:
            if caller.rank > 0:
                proof = _rendezvous_answer_proof(self._token, caller.nonce, addresses)
                caller.sock.settimeout(_UNAUTHENTICATED_S)
                with suppress(OSError):  # a lost rank is detected in the handshake
                    caller.sock.sendall(_rendezvous_line({"addresses": addresses, "proof": proof}))
        return addresses

    def _drop(self, caller: _RendezvousCaller) -> None:
        del self._callers[caller]
        self._selector.unregister(caller.sock)
        caller.sock.close()


def _rendezvous_listener(point: RendezvousPoint) -> socket.socket:
    host, port = point.where
    address = listening_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    bound, _ = split_address(address)
    dual = bound == "::" and socket.has_dualstack_ipv6()
    try:
        if bound == "::" and not dual:
            return socket.create_server(("", port))
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        return socket.create_server((bound, port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise ConfigurationError(
            f"rank 0 can't listen on port {port}, the rendezvous of the ranks ({error.strerror}); {point.port_taken}"
        ) from error


def _ask_rank_0(
    rank: int, size: int, point: RendezvousPoint, own: str, token: bytes | None, end: float, timeout_s: float
) -> tuple[str, ...]:
    while True:
        message: dict[str, Any] = {"rank": rank, "size": size, "address": own, "nonce": secrets.token_hex(16)}
        message["proof"] = _rendezvous_caller_proof(token, message)
        reply = _exchanged_rendezvous_line(point.where, _rendezvous_line(message), end)
        answer = _parsed_rendezvous_line(reply, addresses=list, proof=str)
        refused = _parsed_rendezvous_line(reply, refused=str)
        if refused is not None:
            raise ConfigurationError(refused["refused"][:500])
        if answer is not None and len(answer["addresses"]) == size:
            addresses = tuple(map(str, answer["addresses"]))
            if authentication.is_same_proof(
                _rendezvous_answer_proof(token, message["nonce"], addresses), answer["proof"]
            ):
                return addresses
            raise ConfigurationError(
                f"rank 0 does not have the token of rank {rank}; check RINGTRAIN_TOKEN_FILE on both ranks"
            )
        if time.monotonic() >= end:
            host, port = point.where
            raise ConfigurationError(
                f"rank {rank} did not reach rank 0 at {host}:{port} within {timeout_s:g} s; is "
                f"rank 0 started, and does it call ringtrain.init()?"
            )
        time.sleep(_AGAIN_S)


def _exchanged_rendezvous_line(where: tuple[str, int], line: bytes, end: float) -> bytes:
    """Send a message to rank 0 and return its reply; empty if rank 0 can't be reached."""
    reply = bytearray()
    with suppress(OSError):
        left = max(end - time.monotonic(), _AGAIN_S)
        with socket.create_connection(where, timeout=min(left, _UNAUTHENTICATED_S)) as sock:
            sock.sendall(line)
            while not reply.endswith(b"\n"):
                sock.settimeout(max(end - time.monotonic(), _AGAIN_S))
                if not (data := sock.recv(1 << 16)):
                    break
                reply += data
    return bytes(reply)


def _rendezvous_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed_rendezvous_line(line: bytes, **types: type) -> dict[str, Any] | None:
    """Return the JSON object in `line`; None if it does not have fields of these types."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    return message if all(type(message.get(name)) is wanted for name, wanted in types.items()) else None


def _rendezvous_caller_proof(token: bytes | None, message: dict[str, Any]) -> str:
    parts = (str(message[name]).encode("utf-8", "replace") for name in ("rank", "size", "address", "nonce"))
    return authentication.proof(token, b"address", *parts)


def _rendezvous_answer_proof(token: bytes | None, nonce: str, addresses: tuple[str, ...]) -> str:
    return authentication.proof(token, b"addresses", nonce.encode(), *(address.encode() for address in addresses))
