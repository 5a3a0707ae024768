"""TLS contexts as Go's crypto/tls has them: the cluster's CA is a root, whatever else it says."""

import ssl
import tempfile
from pathlib import Path


class ApiTls(ssl.SSLContext):
    """A context that trusts one CA (PEM), the system's if it is empty, for one name, the server's if it is empty.

    Without VERIFY_X509_STRICT: CAs of many clusters (MicroK8s, older EKS) lack the key usage extension that RFC 5280
    asks of a CA, and kubectl and kubelets accept them. With VERIFY_X509_PARTIAL_CHAIN: an intermediate CA is enough.
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
        """Ask for the server's certificate, and check it, by the name of this context."""
        return super().wrap_bio(incoming, outgoing, server_side, self.name or server_hostname, session)

    def load_pem(self, certificate: str, key: str) -> None:
        """Prove who asks by a client certificate, from the next connection on."""
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only; the folder is this user's alone
            path = Path(folder) / "client.pem"
            path.write_text(f"{certificate}\n{key}")
            self.load_cert_chain(path)
