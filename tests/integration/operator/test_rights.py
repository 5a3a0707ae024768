"""Rights of the operator: enough (the scenarios run with them), and no more."""

from typing import Any

import pytest
from support.apiserver import ControlPlane
from support.cluster import namespace_of, real_cluster
from support.installation import install_rights, token_of
from support.jobs import job
from support.operating import running_operator
from support.rendering import render

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import Forbidden
from ringtrain_operator.cluster.api.resources import JOBS, PODS, SERVICE_ACCOUNTS, ApiResource

pytestmark = pytest.mark.apiserver
REVIEWS = ApiResource(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)

FORBIDDEN = [
    ("get", "", "secrets"),
    ("list", "", "secrets"),
    ("watch", "", "secrets"),
    ("update", "", "secrets"),
    ("patch", "", "secrets"),
    ("delete", "", "secrets"),
    ("create", "", "pods/exec"),
    ("get", "", "pods/log"),
    ("patch", "", "pods"),
    ("delete", "", "services"),
    ("update", "", "nodes"),
    ("list", "", "namespaces"),
    ("create", "rbac.authorization.k8s.io", "rolebindings"),
    ("create", "", "serviceaccounts/token"),
    ("patch", "ringtrain.dev", "distributedtrainingjobs"),
    ("create", "ringtrain.dev", "distributedtrainingjobs"),
    ("list", "ringtrain.dev", "clustertrainingtemplates"),
    ("patch", "ringtrain.dev", "trainingtemplates"),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions"),
]


async def may(api: ApiClient, verb: str, group: str, resource: str, namespace: str = "") -> bool:
    """Whether the API server would allow it to whoever asks."""
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
    }
    review = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": {"resourceAttributes": attributes}}
    answer: dict[str, Any] = await api.create(REVIEWS, None, review)
    return bool(answer["status"]["allowed"])


async def test_the_operator_may_do_no_more_than_it_must(control_plane: ControlPlane) -> None:
    """Not one of these, in any namespace."""
    async with ApiClient(control_plane.connection(control_plane.operator_token)) as api:
        allowed = [what for what in FORBIDDEN if await may(api, *what, namespace="default")]
        assert allowed == []
        assert await may(api, "create", "", "secrets", "default")


async def test_an_operator_of_one_namespace_has_no_right_outside(control_plane: ControlPlane) -> None:
    """With `namespaces` the chart gives Roles there, enough to work, and nothing elsewhere."""
    async with real_cluster(control_plane) as c:
        ns, other = await c.new_namespace(), await c.new_namespace()
        chosen = (f"namespaces={{{ns}}}", "aggregateRoles=false", "templates.enabled=true")
        objects = render(*chosen, release="only", namespace=ns)
        token = await install_rights(c.api, objects)
        connection = control_plane.connection(token)
        async with running_operator(connection, namespaces=(ns,)):
            await c.api.create(JOBS, ns, job())
            await c.until_exists(PODS, ns, "digits-launcher")
        async with ApiClient(connection) as api:
            assert await may(api, "get", "ringtrain.dev", "clustertrainingtemplates")
            assert not await may(api, "list", "", "pods", other)
            with pytest.raises(Forbidden):
                await api.select(JOBS, other)


async def test_a_user_with_edit_may_run_jobs(control_plane: ControlPlane) -> None:
    """The aggregated ClusterRoles give `edit` the jobs, and `view` a look at them."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        bindings = ApiResource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
        for role in ("edit", "view"):
            await c.api.create(SERVICE_ACCOUNTS, ns, {"metadata": {"name": role}})
            subject = {"kind": "ServiceAccount", "name": role, "namespace": ns}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            body = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
            await c.api.create(bindings, ns, body)
        async with (
            ApiClient(control_plane.connection(await token_of(c.api, ns, "edit"))) as editor,
            ApiClient(control_plane.connection(await token_of(c.api, ns, "view"))) as viewer,
        ):
            group, plural = "ringtrain.dev", "distributedtrainingjobs"
            while not await may(viewer, "get", group, plural, ns):  # aggregation is a controller's work
                await c.pause()
            while not await may(editor, "create", group, plural, ns):
                await c.pause()
            assert await may(editor, "patch", group, f"{plural}/scale", ns)
            assert not await may(editor, "patch", group, f"{plural}/status", ns)
            assert not await may(viewer, "delete", group, plural, ns)
            assert await may(editor, "create", group, "trainingtemplates", ns)
            assert not await may(editor, "create", group, "clustertrainingtemplates")
            assert await may(viewer, "list", group, "trainingtemplates", ns)
