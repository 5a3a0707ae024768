"""Service, NetworkPolicy, ServiceAccount and credentials of a job."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtensionOID
from support.jobs import job

from ringtrain_operator import build, contract
from ringtrain_operator.spec import Job, parse_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(uid: str = "0a1b2c3d-4e5f") -> Job:
    """A job with this uid."""
    manifest = job()
    manifest["metadata"]["uid"] = uid
    return parse_job(manifest)


def test_the_service_is_headless_and_names_pods_that_are_not_ready() -> None:
    """Agents must find the launcher before anything is ready."""
    spec = build.build_service(parsed())["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"ringtrain.dev/job-name": "digits"}


def test_only_the_jobs_pods_reach_its_pods() -> None:
    """Every port from its own pods; the status port from the operator; nothing from anyone else."""
    spec = build.build_network_policy(parsed())["spec"]
    own, operator = spec["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"ringtrain.dev/job-name": "digits"}}}]}
    assert [port["port"] for port in operator["ports"]] == [contract.PORT_STATUS]


def test_the_service_account_has_no_token() -> None:
    """Nothing in a job's pods talks to the API."""
    assert build.build_service_account(parsed())["automountServiceAccountToken"] is False
    assert build.build_worker_pod(parsed(), 1, 0)["spec"]["automountServiceAccountToken"] is False


def test_the_credentials() -> None:
    """Certificates of the job's own CA, whose key is not kept; names by role and uid; private keys that fit."""
    found = build.issue_credentials(parsed(), NOW)
    assert set(found) == set(contract.SECRET_KEYS)
    ca = x509.load_pem_x509_certificate(found["ca.crt"])
    for role in ("launcher", "worker"):
        certificate = x509.load_pem_x509_certificate(found[f"{role}.crt"])
        certificate.verify_directly_issued_by(ca)
        names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
        assert isinstance(names, x509.SubjectAlternativeName)
        assert names.get_values_for_type(x509.DNSName) == [f"{role}.0a1b2c3d-4e5f.ringtrain"]
        key = load_pem_private_key(found[f"{role}.key"], None)
        assert key.public_key() == certificate.public_key()
        assert certificate.not_valid_before_utc <= NOW - timedelta(hours=1)
    assert len(found["token"]) >= 32


def test_every_job_has_its_own_credentials() -> None:
    """Two jobs share nothing."""
    one, other = (build.issue_credentials(parsed(), NOW) for _ in range(2))
    assert all(one[key] != other[key] for key in contract.SECRET_KEYS)


def test_the_secret_holds_them() -> None:
    """Base64, immutable, named after the job's uid."""
    secret = build.build_secret(parsed(), dict.fromkeys(contract.SECRET_KEYS, b"x"))
    assert secret["metadata"]["name"] == "digits-0a1b2c3d"
    assert secret["immutable"] is True
    assert base64.b64decode(secret["data"]["token"]) == b"x"
