"""Values that people expect of every chart, and what OpenShift admits."""

from typing import Any

import pytest
from support.jobs import job
from support.rendering import HelmFailed, render

from ringtrain_operator.build import BuildSettings, build_launcher_pod, build_worker_pod
from ringtrain_operator.command import operator
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
OPENSHIFT = "security.openshift.io/v1"
# A namespace's annotation openshift.io/sa.scc.uid-range: "1000650000/10000"; groups are of the same range.
RANGE = range(1_000_650_000, 1_000_660_000)


def deployment(*values: str, **options: str) -> Json:
    (found,) = (obj for obj in render(*values, **options) if obj["kind"] == "Deployment")
    return found


def pod(*values: str, **options: str) -> Json:
    return deployment(*values, **options)["spec"]["template"]["spec"]


def names(*values: str, **options: str) -> set[str]:
    of_users = ("CustomResourceDefinition",)
    return {obj["metadata"]["name"] for obj in render(*values, **options) if obj["kind"] not in of_users}


@pytest.mark.slow
def test_names_of_objects_can_be_set() -> None:
    assert names("fullnameOverride=trainer", "metrics.service=false") == {
        "trainer", "trainer-edit", "trainer-view", "trainer-lease",
    }  # fmt: skip
    assert "ringtrain-trainer" in names("nameOverride=trainer")
    labels = deployment("nameOverride=trainer")["spec"]["selector"]["matchLabels"]
    assert labels["app.kubernetes.io/name"] == "trainer"


def test_every_object_gets_the_common_labels() -> None:
    objects = [obj for obj in render("commonLabels.team=ml") if obj["kind"] != "CustomResourceDefinition"]
    assert all(obj["metadata"]["labels"]["team"] == "ml" for obj in objects)
    found = deployment("commonLabels.team=ml")["spec"]
    assert found["template"]["metadata"]["labels"]["team"] == "ml"
    assert "team" not in found["selector"]["matchLabels"]  # it can't be changed


def test_the_container_takes_more_variables_and_arguments() -> None:
    main = pod("extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy", "extraArgs={--log-level=debug}")
    (container,) = main["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    context = operator.make_context("ringtrain-operator", list(container["args"]))
    assert context.params["log_level"] == "debug"


def test_security_contexts_and_spread_are_values() -> None:
    spread = '--set-json=topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone"}]'
    found = pod("podSecurityContext.runAsUser=7", "securityContext.readOnlyRootFilesystem=false", spread)
    assert found["securityContext"]["runAsUser"] == 7
    assert found["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    assert found["topologySpreadConstraints"] == [{"maxSkew": 1, "topologyKey": "zone"}]


@pytest.mark.parametrize(
    ("values", "account", "made"),
    [
        ((), "ringtrain-operator", True),
        (("serviceAccount.name=trainer",), "trainer", True),
        (("serviceAccount.create=false", "serviceAccount.name=theirs"), "theirs", False),
        (("serviceAccount.create=false",), "default", False),
    ],
    ids=["default", "named", "theirs", "the-namespaces"],
)
def test_the_account_is_made_or_taken(values: tuple[str, ...], account: str, made: bool) -> None:
    assert pod(*values)["serviceAccountName"] == account
    objects = render(*values)
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"] == ([account] if made else [])
    for binding in (obj for obj in objects if obj["kind"].endswith("RoleBinding")):
        assert [subject["name"] for subject in binding["subjects"]] == [account]


def test_a_registry_of_ones_own_serves_both_images() -> None:
    (container,) = pod("image.registry=localhost:5001/")["containers"]
    context = operator.make_context("ringtrain-operator", list(container["args"]))
    assert container["image"].startswith("localhost:5001/ringtrain/operator:")
    assert context.params["agent_image"].startswith("localhost:5001/ringtrain/agent:")
    (container,) = pod("image.registry=", "image.repository=my.registry/ops", "image.tag=v1")["containers"]
    assert container["image"] == "my.registry/ops:v1"


@pytest.mark.parametrize("value", ["resources.limits.memory=lots", "resources.requests.cpu=2 cores"])
def test_an_amount_that_is_no_quantity_is_refused(value: str) -> None:
    with pytest.raises(HelmFailed, match=r"(limits.memory|requests.cpu)"):
        render(value)


def given_group(*values: str, **options: str) -> int | None:
    """The group of jobs' claims that the operator is told."""
    (container,) = pod(*values, **options)["containers"]
    (argument,) = (one for one in container["args"] if one.startswith("--fs-group="))
    value = argument.partition("=")[2]
    return int(value) if value else None


def refusals(spec: Json) -> list[str]:
    """Return the objections of OpenShift's SCC restricted-v2 to a pod: runAsUser MustRunAsRange, fsGroup MustRunAs a
    range, both of the namespace. If the pod omits them, the SCC sets these fields, requiredDropCapabilities and
    allowPrivilegeEscalation (mutateContainer in openshift/apiserver-library-go, sccmatching/provider.go)."""
    contexts = [spec.get("securityContext") or {}, *(c.get("securityContext") or {} for c in spec["containers"])]
    found = [f"runAsUser {c['runAsUser']}" for c in contexts if c.get("runAsUser", RANGE[0]) not in RANGE]
    group = contexts[0].get("fsGroup", RANGE[0])
    found += [] if group in RANGE else [f"fsGroup {group}"]
    for container in spec["containers"]:
        context = container.get("securityContext") or {}
        found += [] if context.get("allowPrivilegeEscalation", False) is False else ["allowPrivilegeEscalation"]
        found += ["capabilities"] if (context.get("capabilities") or {}).get("add") else []
    return found


def test_openshift_admits_the_operator_and_its_jobs() -> None:
    assert not refusals(pod(serves=OPENSHIFT))
    claim = {"persistentVolumeClaim": {"claimName": "c"}}
    manifest = job(checkpoint=claim, logs=claim)
    manifest["metadata"]["uid"] = "0a1b2c3d-0000"
    parsed = parse_job(manifest, templates=False)
    for group, expected in ((given_group(serves=OPENSHIFT), []), (given_group(), ["fsGroup 65532"])):
        settings = BuildSettings(fs_group=group)
        built = build_worker_pod(parsed, 1, 0, settings=settings), build_launcher_pod(parsed, 1, "", settings)
        assert [refusals(one["spec"]) for one in built] == [expected, expected]


def test_the_group_of_claims_is_a_value() -> None:
    assert [given_group(f"jobs.fsGroup={value}") for value in ("Auto", "1000660000", "0")] == [
        65532, 1000660000, None,
    ]  # fmt: skip
