"""TLS contexts with the behaviour of Go's crypto/tls: the cluster's CA is trusted, whatever its extensions are."""

import ssl
import tempfile
from pathlib import Path


class ApiTls(ssl.SSLContext):
    """TLS context that trusts one CA (PEM; empty: the system's) and expects one name (empty: the server's).

    VERIFY_X509_STRICT is off: CAs of many clusters (MicroK8s, older EKS) lack the key usage extension that RFC 5280
    requires, and kubectl and kubelets accept them. VERIFY_X509_PARTIAL_CHAIN is on: an intermediate CA suffices.
    """

    name: str

    def __new__(cls, authority: str = "", name: str = "") -> "ApiTls":
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made.name = name
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if authority:
            made.load_verify_locations(cadata=authority)
        else:
            made.load_default_certs()
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Create a TLS object that uses this context's name for SNI and for the check of the certificate."""
        return super().wrap_bio(incoming, outgoing, server_side, self.name or server_hostname, session)

    def load_pem(self, certificate: str, key: str) -> None:
        """Load a client certificate, in PEM, for all later connections."""
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only; other users cannot read the folder
            path = Path(folder) / "client.pem"
            path.write_text(f"{certificate}\n{key}")
            self.load_cert_chain(path)
