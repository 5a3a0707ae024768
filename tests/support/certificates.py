"""A job's CA, certificates and token, as the operator puts them into its Secret."""

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
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
        )
