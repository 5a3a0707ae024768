"""The CRD on a real API server: what it admits and what it refuses, by the table that the models are held to."""

import copy
import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from contract import object_cases
from contract.pod_cases import NEVER_STARTS, RIGHT, WRONG
from contract.spec_cases import ACCEPTED, REJECTED, UPDATES, manifest
from support.apiserver import ControlPlane
from support.cluster import namespace_of, real_cluster
from support.jobs import job
from support.objects import CUSTOM_RESOURCE_DEFINITIONS
from support.operating import running_operator

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import ApiError, Unprocessable
from ringtrain_operator.cluster.api.resources import JOBS
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job

pytestmark = pytest.mark.apiserver
# Of a rule that is violated, such as `(minReplicas is 3, maxReplicas is 2)`.
VIOLATED = re.compile(r"\(([\w.]+ is [^{}()]*)\)(?:$|, )")
RAN = {"status": {"ledger": {"hasRun": True}}}


def named(manifest: dict[str, Any], namespace: str, name: str) -> dict[str, Any]:
    """A copy of the manifest under another name."""
    obj = copy.deepcopy(manifest)
    obj["metadata"] = {**obj["metadata"], "namespace": namespace, "name": name}
    return obj


async def why_refused(api: ApiClient, namespace: str, obj: dict[str, Any]) -> str:
    """The API server's words, empty if it admitted the object."""
    try:
        await api.create(JOBS, namespace, obj)
    except Unprocessable as refused:
        return refused.message
    return ""


async def test_the_schema_is_structural(control_plane: ControlPlane) -> None:
    """The API server has nothing to object to in schema, names and rules."""
    async with real_cluster(control_plane) as c:
        crd = await c.api.get(CUSTOM_RESOURCE_DEFINITIONS, None, "distributedtrainingjobs.ringtrain.dev")
        conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}


async def test_what_the_models_accept_is_admitted(control_plane: ControlPlane) -> None:
    """Every accepted case is created."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        answers = {
            case.id: await why_refused(c.api, ns, named(case.manifest, ns, f"accepted-{number}"))
            for number, case in enumerate(ACCEPTED)
        }
        assert {id_: why for id_, why in answers.items() if why} == {}


async def test_what_the_models_refuse_is_refused(control_plane: ControlPlane) -> None:
    """Each refusal comes at admission and names the field, and values that the models name; what only the models can
    know is not in this table."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        wrong = {}
        for number, case in enumerate(c for c in REJECTED if c.at_admission):
            name = case.manifest["metadata"]["name"]
            own = f"rejected-{number}" if name == "job" else name
            reason = await why_refused(c.api, ns, named(case.manifest, ns, own))
            leaf = case.path.split(".")[-1].split("[")[0]
            with pytest.raises(Invalid) as refused:
                parse_job(case.manifest)
            found = [VIOLATED.search(problem.message) for problem in refused.value.problems]
            said = ", ".join(one[1] for one in found if one and case.id != "topology-twice")  # not set in all such jobs
            shown = VIOLATED.search(reason)
            if leaf not in reason or (said and (not shown or shown[1] not in said)):
                wrong[case.id] = reason or "admitted"
        assert wrong == {}


async def test_what_may_change_may_change(control_plane: ControlPlane) -> None:
    """Immutability rules of the CRD agree with the models'."""
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        wrong = {}
        for number, case in enumerate(UPDATES):
            name = f"update-{number}"
            await c.api.create(JOBS, ns, named(case.old, ns, name))
            old = await c.api.patch(JOBS, ns, name, RAN, subresource="status")
            new = named(case.new, ns, name)
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            try:
                await c.api.replace(JOBS, ns, new)
                reason = ""
            except Unprocessable as refused:
                reason = refused.message
            leaf = case.path.split(".")[-1]
            if bool(reason) != bool(case.path) or leaf not in reason:
                wrong[case.id] = reason or "admitted"
        assert wrong == {}


async def test_a_job_that_never_ran_may_be_corrected(control_plane: ControlPlane) -> None:
    """Changes that are refused once a job has run or ended are admitted before, except one of managedBy."""
    wrong, ended = {}, {"status": {"state": "Failed"}}
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        for number, case in enumerate(case for case in UPDATES if case.path):
            for status in ({}, {"status": {"state": "Pending", "ledger": {"hasRun": False}}}, ended):
                name = f"update-{number}-{len(str(status))}"
                await c.api.create(JOBS, ns, named(case.old, ns, name))
                old = await c.api.patch(JOBS, ns, name, status, subresource="status")
                new = named(case.new, ns, name)
                new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
                try:
                    await c.api.replace(JOBS, ns, new)
                    admitted = True
                except Unprocessable:
                    admitted = False
                if admitted is (status is ended or case.path == "spec.managedBy"):
                    wrong[f"{case.id} {status}"] = admitted
        assert wrong == {}


async def test_a_world_with_a_dispatcher_for_each_rank_keeps_its_size(control_plane: ControlPlane) -> None:
    """A running job with fewer or more ranks would be one that can't run, and its end would not be looked for."""
    tensorflow = {"kind": "tensorflow", "replicas": 2, "dispatchers": 2}
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        await c.api.create(JOBS, ns, job(workers=2, dataWorkers=tensorflow))
        for subresource in (None, "scale"):
            wanted = {"replicas": 3} if subresource else {"worker": {"replicas": 3}}
            with pytest.raises(Unprocessable, match=r"set runPolicy\.suspend: true first"):
                await c.api.patch(JOBS, ns, "digits", {"spec": wanted}, subresource=subresource)
        await c.api.patch(JOBS, ns, "digits", {"spec": {"runPolicy": {"suspend": True}}})
        await c.api.patch(JOBS, ns, "digits", {"spec": {"worker": {"replicas": 3}}})


async def test_what_admission_cannot_know_is_said_in_the_status(control_plane: ControlPlane) -> None:
    """A job that only the models can refuse gets Accepted=False with the field, and no pods."""
    cases = [c for c in REJECTED if not c.at_admission]
    async with (
        namespace_of(real_cluster(control_plane)) as (c, ns),
        running_operator(c.operator_connection, namespaces=(ns,)),
    ):
        for number, case in enumerate(cases):
            name = f"late-{number}"
            await c.api.create(JOBS, ns, named(case.manifest, ns, name))

            def rejected(job: dict[str, Any] | None, path: str = case.path) -> bool:
                conditions = ((job or {}).get("status") or {}).get("conditions") or []
                accepted = next((k for k in conditions if k["type"] == "Accepted"), {})
                return accepted.get("status") == "False" and path in accepted["message"]

            await c.until(JOBS, ns, name, rejected)


LONG = "x" * 63
DOMAIN = ".".join(["d" * 62] * 4)
KEYS = ("run", "a", "A", "a-b_c.d", "a/b", "a.b/C", "a.B/c", "A.B/c", f"{DOMAIN}/a", LONG, f"{LONG}x", "7", "-a", "a-")
KEYS += (
    f"{DOMAIN}xx/a",
    "a b",
    "bad key!",
    "",
    "/a",
    "a/",
    "a/b/c",
    "a..b/c",
    "a_b/c",
    "-a/b",
    "\u00fc",
    "a/-b",
    "a\n",
)
VALUES: tuple[Any, ...] = (
    "",
    "a",
    "7",
    "A_b-c.d",
    LONG,
    f"{LONG}x",
    "-a",
    "a-",
    ".",
    "a b",
    "\u00fcn\u00ef",
    "a/b",
    "a\n",
)
VALUES += (7, 1.0, True, None, [], {})
SIZES = ((256 << 10) - 1, 256 << 10)


def labelled(kind: str, key: str, value: Any) -> dict[str, Any]:
    """A job that has a label or an annotation."""
    return {**manifest(), "metadata": {"name": "labelled", kind: {key: value}}}


async def is_admitted(api: ApiClient, namespace: str, obj: dict[str, Any]) -> bool:
    """Whether the API server takes the job; it is deleted again."""
    try:
        await api.create(JOBS, namespace, obj)
    except ApiError:
        return False
    await api.delete(JOBS, namespace, obj["metadata"]["name"])
    return True


def is_valid(obj: dict[str, Any]) -> bool:
    """Whether the models take the job."""
    try:
        parse_job(obj)
    except Invalid:
        return False
    return True


async def test_labels_and_annotations_are_judged_alike(control_plane: ControlPlane) -> None:
    """Keys, values, types and sizes: `dtj validate` and the API server take the same ones."""
    cases = [(kind, key, "a") for kind in ("labels", "annotations") for key in KEYS]
    cases += [(kind, "key", value) for kind in ("labels", "annotations") for value in VALUES]
    cases += [("annotations", "a", "x" * size) for size in SIZES]
    async with namespace_of(real_cluster(control_plane)) as (c, ns):
        admitted = {str(case)[:80]: await is_admitted(c.api, ns, labelled(*case)) for case in cases}
    assert {str(case)[:80]: is_valid(labelled(*case)) for case in cases} == admitted
    assert {True, False} <= set(admitted.values())


# Values of managedBy.
MANAGERS = (
    *("a.b/c", "kueue.x-k8s.io/multikueue", "a/b", "a/B_c.d~e", "a/b/c", "a/%20", "0.a/b", "a-b/c"),
    *("me", "", "a", "/a", "a/", "A/b", "a_b/c", "-a/b", "a-/b", "a..b/c", "a./b", "a/b c", "a/b?", "a/#", "a/ä"),
    *("a/" + "b" * 61, "a/" + "b" * 62),
)


async def test_managers_are_named_as_for_kubernetes_own_jobs(control_plane: ControlPlane) -> None:
    """A DistributedTrainingJob and a Job of the API server accept and refuse the same values."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}
    async with namespace_of(real_cluster(control_plane)) as (_, ns):
        for manager in MANAGERS:
            spec = {"managedBy": manager, "template": {"spec": pod}}
            own = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
            code, answer, _ = dry_run(control_plane, f"/apis/batch/v1/namespaces/{ns}/jobs", own)
            assert is_valid(job(managedBy=manager)) == (code == 201), (manager, answer)


async def test_the_api_server_refuses_what_validate_refuses_of_a_config_map_or_secret(
    control_plane: ControlPlane,
) -> None:
    """And accepts the right ones."""
    async with namespace_of(real_cluster(control_plane)) as (_, ns):
        for obj in [*(wrong for wrong, _ in object_cases.WRONG), *object_cases.RIGHT]:
            path = f"/api/v1/namespaces/{ns}/{obj['kind'].lower()}s"
            code, answer, _ = dry_run(control_plane, path, obj)
            assert code in ((201,) if obj in object_cases.RIGHT else (400, 422)), (obj, answer)


def dry_run(plane: ControlPlane, path: str, obj: dict[str, Any]) -> tuple[int, dict[str, Any], list[str]]:
    """Create the object without storing it; return the API server's code, its answer, and its warnings."""
    connection = plane.connection()
    headers = {"Content-Type": "application/json", **connection.headers()}
    address = f"{plane.url}{path}?dryRun=All&fieldValidation=Strict"
    request = urllib.request.Request(address, json.dumps(obj).encode(), headers)
    try:
        with urllib.request.urlopen(request, context=connection.tls) as answer:
            return answer.status, json.load(answer), answer.headers.get_all("Warning") or []
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal), []


def refused_fields(answer: dict[str, Any]) -> list[str]:
    """Return the fields that an answer of the API server refuses."""
    return [str(cause.get("field")) for cause in (answer.get("details") or {}).get("causes", [])]


async def test_the_api_server_refuses_what_validate_refuses_of_a_template(control_plane: ControlPlane) -> None:
    """It names the same field of a Job or a Pod of the template, or warns; it accepts the others."""
    async with namespace_of(real_cluster(control_plane)) as (_, ns):
        jobs, pods = f"/apis/batch/v1/namespaces/{ns}/jobs", f"/api/v1/namespaces/{ns}/pods"
        for case in WRONG:
            answers = [dry_run(control_plane, jobs, case.batch_job), dry_run(control_plane, pods, case.pod)]
            fields = [field for _, answer, _ in answers for field in refused_fields(answer)]
            warnings = [warning for _, _, given in answers for warning in given]
            message = next((str(answer.get("message")) for code, answer, _ in answers if code != 201), "")
            named = case.answer in message if case.answer else any(map(case.is_named, fields))
            assert named is not case.warns, (case, fields, message)
            assert not case.warns or any(case.field in warning for warning in warnings), (case, warnings)
        for case in RIGHT + NEVER_STARTS:
            code, answer, warnings = dry_run(control_plane, jobs, case.batch_job)
            assert (code, warnings if case in NEVER_STARTS else []) == (201, []), (case, answer)
