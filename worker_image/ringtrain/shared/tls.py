"""Mutual TLS between ranks, with certificates of the job's own CA."""

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared.connection_errors import ConnectionLost

if TYPE_CHECKING:  # settings are read before gRPC is loaded, which reads the environment at that time
    import grpc

Buffer = bytes | bytearray | memoryview

CERTIFICATE_FILES: Final = ("ca.crt", "tls.crt", "tls.key")
# Size of a TLS record; shorter parts are joined up to it.
_RECORD_BYTES: Final = 16 << 10


@dataclass(frozen=True)
class TlsCertificates:
    """Certificate, private key and the job's CA, in PEM format."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    @staticmethod
    def read(directory: Path) -> "TlsCertificates":
        """Return the certificates in the three files of `directory`. Raises OSError if one cannot be read."""
        return TlsCertificates(*((directory / file).read_bytes() for file in CERTIFICATE_FILES))

    def for_server(self) -> "grpc.ServerCredentials":
        """Return gRPC credentials of a server that requires a certificate of the job's CA from every client."""
        import grpc

        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.ca, require_client_auth=True)

    def for_channel(self) -> "grpc.ChannelCredentials":
        """Return gRPC credentials of a client that trusts only the job's CA and sends its own certificate."""
        import grpc

        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def name_problem(names: Sequence[str], expected: str) -> str:
    """Return an error if a certificate for the DNS names `names` is not for `expected`; empty if it is."""
    return "" if expected in names else f"the certificate is for {', '.join(names) or 'no name'}, expected {expected}"


def caller_problem(context: Any, expected: str) -> str:
    """Return an error if the certificate of a gRPC caller is not for the DNS name `expected`; empty if it is."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return name_problem([name.decode() for name in names], expected)


@dataclass(frozen=True)
class TlsIdentity:
    """TLS settings of a rank. `name`: the DNS name in the certificates of all ranks of the job."""

    certificates: TlsCertificates
    name: str
    server: ssl.SSLContext = field(repr=False)
    client: ssl.SSLContext = field(repr=False)

    @staticmethod
    def load(directory: Path, name: str) -> "TlsIdentity":
        """Return the identity from ca.crt, tls.crt and tls.key in `directory`. Raises ConfigurationError if a file is
        unusable."""
        try:
            certificates = TlsCertificates.read(directory)
            server, client = (
                _tls_context(kind, directory) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"RINGTRAIN_ENCRYPT is tensors, which needs {', '.join(CERTIFICATE_FILES)} in "
                f"RINGTRAIN_SECRET_DIR ({directory}): {error}"
            ) from error
        return TlsIdentity(certificates, name, server, client)

    def wrap(self, sock: socket.socket, is_client: bool) -> "TlsSocket":
        """Return `sock` with TLS. `is_client`: whether this side began the connection. The handshake follows in
        `shake_hands`."""
        if is_client:
            wrapped = self.client.wrap_socket(sock, server_hostname=self.name, do_handshake_on_connect=False)
        else:
            wrapped = self.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return TlsSocket(wrapped, self)


def _tls_context(kind: int, directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(directory / "ca.crt")
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


class TlsSocket:
    """TLS connection with the socket methods that `SocketChannel` uses. Raises BlockingIOError instead of waiting."""

    def __init__(self, sock: ssl.SSLSocket, tls: TlsIdentity) -> None:
        self._sock = sock
        self._tls = tls
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def shake_hands(self, tick_s: float, deadline: float) -> None:
        """Run the TLS handshake and check the other side's certificate. Raises ConnectionLost if either fails."""
        try:
            self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
            self._sock.do_handshake()
            self._sock.settimeout(tick_s)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the TLS handshake with the job's certificates failed: {error}") from error
        certificate: dict[str, Any] = self._sock.getpeercert() or {}
        names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if problem := name_problem(names, self._tls.name):
            raise ConnectionLost(problem)

    def recv_into(self, target: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        if not flags & socket.MSG_DONTWAIT:
            return self._received(target)
        if not self._sock.pending() and not self._poll.poll(0):
            raise BlockingIOError
        tick_s = self._sock.gettimeout()
        self._sock.settimeout(0.0)  # received data may be part of a record
        try:
            return self._received(target)
        finally:
            self._sock.settimeout(tick_s)

    def _received(self, target: memoryview) -> int:
        try:
            return self._sock.recv_into(target)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, TimeoutError) as error:
            raise BlockingIOError from error

    def sendmsg(self, parts: Sequence[Buffer]) -> int:
        first = parts[0]
        if len(first) < _RECORD_BYTES and len(parts) > 1:
            joined = bytearray()
            for part in parts:
                joined += memoryview(part)[: _RECORD_BYTES - len(joined)]
                if len(joined) == _RECORD_BYTES:
                    break
            first = joined
        try:
            return self._sock.send(first)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, TimeoutError) as error:
            raise BlockingIOError from error

    def shutdown(self, how: int) -> None:
        # The TLS socket's own method drops its keys first; another thread would then send in clear.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, how)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()
