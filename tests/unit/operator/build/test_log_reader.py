"""The pod that reads a job's log store when its launcher is over."""

from typing import Any

from support.jobs import job

from ringtrain_operator import contract
from ringtrain_operator.build.log_reader import build_log_reader_pod
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]

LAUNCHER = {
    "metadata": {"labels": {"queue": "x"}, "annotations": {"inject": "yes"}},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "hostNetwork": True,
        "securityContext": {"runAsUser": 1000},
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {
                "name": "launcher",
                "image": "own:1",
                "env": [
                    {"name": "PATH", "value": "/opt/bin"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}},
                ],
                "envFrom": [{"secretRef": {"name": "gone"}}],
                "securityContext": {"privileged": True, "runAsGroup": 7},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "proxy", "image": "proxy:1"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def reader(**spec: Any) -> Json:
    """The reader of a job with its logs and checkpoints on claims."""
    claims = {
        "logs": {"persistentVolumeClaim": {"claimName": "runs"}},
        "checkpoint": {"persistentVolumeClaim": {"claimName": "saved"}},
    }
    manifest = job(**{**claims, **spec})
    manifest["metadata"].update(namespace="team", uid="0a1b2c3d-0000")
    return build_log_reader_pod(parse_job(manifest, templates=False), 2, "abc", 60)


def test_it_has_the_log_store_and_nothing_else() -> None:
    """One container, the claim read-only, and nothing that may be gone or that an attacker would want."""
    pod = reader(launcher={"template": LAUNCHER})
    spec = pod["spec"]
    (container,) = spec["containers"]
    (volume,) = spec["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "runs"}
    assert container["volumeMounts"] == [
        {"name": volume["name"], "mountPath": contract.LOG_DIR, "readOnly": True},
    ]
    assert not {"initContainers", "hostNetwork", "subdomain"} & set(spec)
    assert not {"envFrom", "ports", "livenessProbe"} & set(container)
    assert container["image"] == "own:1"
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (env["PATH"], env[contract.ENV_ATTEMPT], env[contract.ENV_JOB_NAME]) == ("/opt/bin", "2", "digits")
    assert contract.ENV_STATUS_TOKEN not in env
    assert spec["nodeSelector"] == {"disk": "fast"}


def test_it_has_no_right_of_the_launchers_and_ends() -> None:
    """It has its user, whatever else the launcher may, a deadline, and no token of the API."""
    spec = reader(launcher={"template": LAUNCHER})["spec"]
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"]
    assert spec["containers"][0]["securityContext"] == {
        "runAsGroup": 7,
        "readOnlyRootFilesystem": True,
    }
    assert (spec["activeDeadlineSeconds"], spec["restartPolicy"]) == (60, "Never")
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["resources"]["limits"]


def test_it_goes_with_the_job_and_is_none_of_its_pods() -> None:
    """The job owns it without being its controller; the operator's selectors and policies do not match it."""
    meta = reader()["metadata"]
    (owner,) = meta["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("0a1b2c3d-0000", False, False)
    assert contract.LABEL_JOB not in meta["labels"]
    assert meta["labels"][contract.LABEL_MANAGED_BY] != contract.MANAGED_BY
    assert meta["name"] == "digits-logs-abc"


def test_where_the_agent_was_brought_it_has_the_agents_image() -> None:
    """The image of the job's pods need not have ringtrain, nor `sleep`."""
    manifest = job(logs={"persistentVolumeClaim": {"claimName": "runs"}})
    manifest["metadata"].update(namespace="team", uid="0a1b2c3d-0000")
    pod = build_log_reader_pod(parse_job(manifest, templates=False), 2, "abc", 60, "agent:7")
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["command"][0]) == ("agent:7", "/python/bin/python3")


def test_a_reader_of_logs_in_a_store_is_told_where() -> None:
    """It has the URI and the Secret of spec.logs, and no other variables from Secrets."""
    logs = {"uri": "s3://bucket/logs", "secretRef": {"name": "s3-keys"}}
    pod = reader(logs=logs, checkpoint={"uri": "s3://bucket/c", "secretRef": {"name": "others"}})
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    found = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert str(found["RINGTRAIN_LOG_URI"]).startswith("s3://bucket/logs/")
