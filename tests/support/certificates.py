"""CAs of jobs, as the operator writes them into a Secret, and of clusters."""

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


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
        """Write the files that a pod of `role` mounts into `directory`. `uid`: in it; default: the job's."""
        directory.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
        names = x509.SubjectAlternativeName([x509.DNSName(f"{role}.{uid or self.uid}.ringtrain")])
        builder = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        (directory / "ca.crt").write_bytes(self._certificate.public_bytes(PEM))
        (directory / "tls.crt").write_bytes(certificate.public_bytes(PEM))
        (directory / "tls.key").write_bytes(_key_bytes(key))
        (directory / "token").write_text(token)
        return directory

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return _builder(subject, self._name, key)


class ClusterAuthority:
    """The CA of a cluster. `key_usage`: whether it has the extension that RFC 5280 requires of a CA."""

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
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def server_context(self, directory: Path, *names: str) -> ssl.SSLContext:
        """Return the certificate of a server with these IPs and host names; write its files into `directory`."""
        certificate, key = self.issue("apiserver", *names)
        return _context(directory / "server.pem", key + certificate)

    def issue(self, subject: str, *names: str) -> tuple[bytes, bytes]:
        """Return a certificate for `subject` with these IPs and host names, and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]), key.public_key())
        if names:
            builder = builder.add_extension(_of_names(names), critical=False)
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        return certificate.public_bytes(PEM), _key_bytes(key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return _builder(subject, self._name, key)


def self_signed(name: str) -> tuple[bytes, bytes]:
    """Return the key and the self-signed certificate of a server at 127.0.0.1, as PEM."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key()).add_extension(_of_names(["127.0.0.1"]), critical=False)
    return _key_bytes(key), builder.sign(key, hashes.SHA256()).public_bytes(PEM)


def own_context(name: str, directory: Path) -> ssl.SSLContext:
    """Return the TLS context of a server at 127.0.0.1 with a self-signed certificate, written into `directory`."""
    return _context(directory / f"{name}.pem", b"".join(self_signed(name)))


def _context(path: Path, pem: bytes) -> ssl.SSLContext:
    path.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def _of_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_general_name(name) for name in names])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


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
