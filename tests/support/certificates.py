"""CAs of jobs, as the operator puts them into a Secret, and of clusters."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class JobAuthority:
    """The CA of one job. `uid`: of the job."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ringtrain job CA")])
        self._name = name
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(name, self._key.public_key()).add_extension(constraints, critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def secret_dir(self, directory: Path, role: str, *, uid: str = "", token: str = "token-1") -> Path:
        """Write what a pod of `role` mounts into `directory`; `uid`: in the certificate, instead of the job's."""
        directory.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
        names = x509.SubjectAlternativeName([x509.DNSName(f"{role}.{uid or self.uid}.ringtrain")])
        builder = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        no_password = serialization.NoEncryption()
        key_bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
        (directory / "ca.crt").write_bytes(self._certificate.public_bytes(pem))
        (directory / "tls.crt").write_bytes(certificate.public_bytes(pem))
        (directory / "tls.key").write_bytes(key_bytes)
        (directory / "token").write_text(token)
        return directory

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return _builder(subject, self._name, key)


class ClusterAuthority:
    """The CA of a cluster. `key_usage`: whether it says what its key is for, as RFC 5280 asks of a CA."""

    def __init__(self, *, key_usage: bool) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster CA")])
        public = self._key.public_key()
        builder = (
            self._builder(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        if key_usage:
            names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
            nothing_else = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
            usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **nothing_else)
            builder = builder.add_extension(usage, critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def server_context(self, directory: Path, address: str) -> ssl.SSLContext:
        """What a server at the IP `address` needs; its files are written into `directory`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "apiserver")])
        builder = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
        path = directory / "server.pem"
        path.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password) + certificate.public_bytes(pem)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return _builder(subject, self._name, key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )
