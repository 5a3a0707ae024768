"""Service, NetworkPolicy, ServiceAccount and credentials of a job."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtensionOID
from support.jobs import job

from ringtrain_operator import build, contract
from ringtrain_operator.build.network import OPERATOR_LABELS
from ringtrain_operator.errors import Invalid
from ringtrain_operator.observe.pods import status_token
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job

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
    """Every port from its own pods; the status port from the operator's namespace; nothing from anyone else."""
    spec = build.build_network_policy(parsed(), build.BuildSettings(operator_namespace="rt"))["spec"]
    own, operator = spec["ingress"]
    assert operator["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rt"}},
            "podSelector": {"matchLabels": {"ringtrain.dev/component": "operator"}},
        }
    ]
    assert own == {"from": [{"podSelector": {"matchLabels": {"ringtrain.dev/job-name": "digits"}}}]}
    assert [port["port"] for port in operator["ports"]] == [contract.PORT_STATUS]


def test_no_job_looks_like_the_operator() -> None:
    """A job's pods lack the label by which policies admit the operator, and no template may set it."""
    manifest = job("ringtrain-operator")
    manifest["metadata"]["uid"] = "0a1b2c3d-4e5f"
    pods = (build.build_worker_pod(parse_job(manifest), 1, 0), build.build_launcher_pod(parse_job(manifest), 1))
    for pod in pods:
        assert not OPERATOR_LABELS.items() <= pod["metadata"]["labels"].items()
    manifest["spec"]["worker"]["template"]["metadata"] = {"labels": dict(OPERATOR_LABELS)}
    with pytest.raises(Invalid, match="is set by the operator"):
        parse_job(manifest)


def test_the_installation_may_let_others_in() -> None:
    """Prometheus reaches the status port, and a peer the ports that a template declares."""
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    manifest = job()
    manifest["spec"]["worker"]["template"]["spec"]["containers"][0]["ports"] = [
        {"containerPort": 6006},
        {"containerPort": 9000, "protocol": "UDP"},
    ]
    settings = build.BuildSettings(operator_namespace="", metrics_from=[prometheus], template_ports_from=[peer])
    _, metrics, template = build.build_network_policy(parse_job(manifest), settings)["spec"]["ingress"]
    assert metrics == {"from": [prometheus], "ports": [{"port": contract.PORT_STATUS, "protocol": "TCP"}]}
    ports = [{"port": 6006, "protocol": "TCP"}, {"port": 9000, "protocol": "UDP"}]
    assert template == {"from": [peer], "ports": ports}
    assert len(build.build_network_policy(parsed(), settings)["spec"]["ingress"]) == 2


def test_each_launcher_has_a_token_of_its_own() -> None:
    """Each launcher pod's manifest contains a token of its own for /status; a worker pod has none."""
    one, other = (status_token(build.build_launcher_pod(parsed(), 1)) for _ in range(2))
    assert len(one) >= 32
    assert one != other
    assert status_token(build.build_worker_pod(parsed(), 1, 0)) == ""


def test_the_service_account_has_no_token() -> None:
    """Nothing in a job's pods talks to the API."""
    assert build.build_service_account(parsed())["automountServiceAccountToken"] is False
    assert build.build_worker_pod(parsed(), 1, 0)["spec"]["automountServiceAccountToken"] is False


def test_the_credentials() -> None:
    """Certificates of the job's own CA, whose key is not kept; names by role and uid; private keys that fit."""
    found = build.issue_credentials(parsed(), NOW)
    assert set(found) == set(contract.SECRET_KEYS)
    ca = x509.load_pem_x509_certificate(found["ca.crt"])
    for role in ("launcher", "worker", "data"):
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
