"""Credentials of one job: a CA whose key is discarded, a certificate for each role, and a token."""

import base64
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .. import contract
from ..spec.job import Job
from .names import job_labels, metadata, secret_name

Issuer = Callable[[Job, datetime], Mapping[str, bytes]]
"""Function that creates a job's credentials: the keys of the Secret (contract.SECRET_KEYS) and their bytes."""

# Longer than any job; the credentials are deleted with the job's Secret.
VALIDITY = timedelta(days=3650)
# Nodes' clocks may be behind the operator's.
CLOCK_SKEW = timedelta(days=1)
TOKEN_BYTES = 32


def issue_credentials(job: Job, now: datetime) -> dict[str, bytes]:
    """Return new credentials for `job`: PEM files and a token by name, from the system's random source."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ringtrain {job.uid}")])
    ca = (
        _build_certificate(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    found = {"ca.crt": ca.public_bytes(serialization.Encoding.PEM)}
    for role in (contract.ROLE_LAUNCHER, contract.ROLE_WORKER, contract.ROLE_DATA):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _job_leaf_certificate(job, role, key.public_key(), (ca_name, ca_key, now))
        found[f"{role}.crt"] = certificate.public_bytes(serialization.Encoding.PEM)
        found[f"{role}.key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    found["token"] = secrets.token_urlsafe(TOKEN_BYTES).encode()
    return found


def build_secret(job: Job, credentials: Mapping[str, bytes], serial: int = 0) -> dict[str, Any]:
    """Return the immutable Secret with `credentials`."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, secret_name(job, serial), job_labels(job)),
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(credentials[key]).decode() for key in contract.SECRET_KEYS},
    }


def _job_leaf_certificate(
    job: Job,
    role: str,
    key: ec.EllipticCurvePublicKey,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey, datetime],
) -> x509.Certificate:
    """Return a certificate for `role`, for servers and clients, because every role is both. `key`: the role's key.

    `issuer`: name and private key of the job's CA, and the time of issue.
    """
    ca_name, ca_key, now = issuer
    roles = [role]
    if role == contract.ROLE_LAUNCHER and job.num_agents > job.num_workers:
        roles.append(contract.ROLE_WORKER)  # this launcher's pod also runs an agent
    host, *others = (f"{name}.{job.uid}.ringtrain" for name in roles)
    # A common name has at most 64 characters; only the DNS name in the alternative names is verified.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _build_certificate(name, ca_name, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in (host, *others)]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _build_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _key_usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
