"""A job's spec laid over a template's."""

from hashlib import sha256
from typing import Any

import pytest

from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import (
    MAX_BYTES,
    Template,
    merged_spec,
    named_template,
    read_template,
    resolved_job_spec,
    stored_template,
)

Json = dict[str, Any]


def pod(**fields: Any) -> Json:
    """A spec with a worker of this pod."""
    return {"worker": {"template": {"spec": fields}}}


def train(**fields: Any) -> Json:
    """A spec whose first container has these fields."""
    return pod(containers=[{"name": "train", **fields}])


def variables(**values: str) -> list[Json]:
    """A container's env."""
    return [{"name": name, "value": value} for name, value in values.items()]


DATA = {"name": "data", "emptyDir": {}}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}


@pytest.mark.parametrize(
    ("template", "job", "made"),
    [
        pytest.param({"backend": "mpi"}, {}, {"backend": "mpi"}, id="left-out"),
        pytest.param({"slotsPerWorker": 2}, {"slotsPerWorker": 4}, {"slotsPerWorker": 4}, id="a-value"),
        pytest.param({"backend": "mpi"}, {"backend": "ring"}, {"backend": "mpi"}, id="at-its-default"),
        pytest.param(
            {"runPolicy": {"backoffLimit": 5}},
            {"runPolicy": {"suspend": False, "backoffLimit": 3, "cleanPodPolicy": "All", "failureRules": []}},
            {"runPolicy": {"backoffLimit": 5, "cleanPodPolicy": "All"}},
            id="a-section-of-the-api-server",
        ),
        pytest.param({"networking": {"timeoutSeconds": 9}}, {"networking": {}}, None, id="a-section-of-defaults"),
        pytest.param({"slotsPerWorker": 2}, {"slotsPerWorker": None}, None, id="null-of-ours-says-nothing"),
        pytest.param({"elastic": {"maxReplicas": 4}}, {"elastic": {}}, None, id="an-empty-section"),
        pytest.param(
            {"worker": {"devices": {"a.b/c": 8, "a.b/d": 1}}},
            {"worker": {"replicas": 1, "devices": {"a.b/c": 2}}},
            {"worker": {"devices": {"a.b/c": 2, "a.b/d": 1}}},
            id="a-mapping-key-by-key",
        ),
        pytest.param(
            pod(nodeSelector={"disk": "ssd", "zone": "a"}, priorityClassName="low"),
            pod(nodeSelector={"disk": None, "gpu": "h100"}, priorityClassName=None),
            pod(nodeSelector={"zone": "a", "gpu": "h100"}),
            id="null-removes-in-a-pod",
        ),
        pytest.param(
            train(image="i", command=["python", "a.py"]),
            train(command=["python", "b.py"]),
            train(image="i", command=["python", "b.py"]),
            id="containers-by-name",
        ),
        pytest.param(
            train(image="i"), pod(containers=[{"args": ["x"]}]), train(image="i", args=["x"]), id="the-first-one"
        ),
        pytest.param(
            pod(containers=[{"name": "train"}, {"name": "side", "image": "s"}]),
            pod(containers=[{"name": "new", "image": "n"}, {"name": "side", "image": "t"}]),
            pod(containers=[{"name": "train"}, {"name": "side", "image": "t"}, {"name": "new", "image": "n"}]),
            id="one-more-container-comes-last",
        ),
        pytest.param(
            train(env=variables(A="1", B="2")),
            train(env=[{"name": "B", "valueFrom": {"fieldRef": {}}}, *variables(C="3")]),
            train(env=[*variables(A="1"), {"name": "B", "valueFrom": {"fieldRef": {}}}, *variables(C="3")]),
            id="a-variable-is-replaced",
        ),
        pytest.param(pod(volumes=[DATA]), pod(volumes=[CLAIM]), pod(volumes=[CLAIM]), id="a-volume-is-replaced"),
        pytest.param(
            train(volumeMounts=[{"name": "d", "mountPath": "/a"}, {"name": "d", "mountPath": "/b"}]),
            train(volumeMounts=[{"name": "d", "mountPath": "/c"}, {"name": "d", "mountPath": "/e"}]),
            train(volumeMounts=[{"name": "d", "mountPath": "/c"}, {"name": "d", "mountPath": "/e"}]),
            id="all-mounts-of-a-name",
        ),
        pytest.param(
            pod(tolerations=[{"key": "a"}]),
            pod(tolerations=[{"key": "b"}]),
            pod(tolerations=[{"key": "b"}]),
            id="another-list-is-replaced",
        ),
        pytest.param(pod(volumes=[DATA]), pod(volumes="none"), pod(volumes="none"), id="of-a-wrong-shape"),
        pytest.param({"nonsense": 1}, {"other": {"a": 1}}, {"nonsense": 1, "other": {"a": 1}}, id="unknown-fields"),
    ],
)
def test_a_job_laid_over_a_template(template: Json, job: Json, made: Json | None) -> None:
    """None: what comes out is the template."""
    found = merged_spec({"templateRef": {"name": "t"}, **job}, template)
    assert found == (template if made is None else made)


def job(**spec: Any) -> Json:
    """A job that names the template t."""
    meta = {"apiVersion": "ringtrain.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "j"}}
    return {**meta, "spec": {"templateRef": {"name": "t"}, **spec}}


def template(job: Any, **more: Any) -> Json:
    """A ClusterTrainingTemplate."""
    meta = {"apiVersion": "ringtrain.dev/v1alpha1", "kind": "ClusterTrainingTemplate", "metadata": {"name": "t"}}
    return {**meta, "spec": {"job": job, **more}}


def test_a_job_and_its_template_are_one() -> None:
    """Errors in the combination of job and template, such as a field missing in both, are reported as for any job."""
    known = read_template(template({**train(image="i", command=["python"]), "elastic": {"maxReplicas": 2}}))
    assert parse_job(resolved_job_spec(job(worker={"replicas": 2}), known)).spec.worker.replicas == 2
    with pytest.raises(Invalid, match=r"spec.worker.replicas: .* from elastic.minReplicas to elastic.maxReplicas"):
        parse_job(resolved_job_spec(job(worker={"replicas": 3}), known))
    with pytest.raises(Invalid, match=r"containers\[0\].image: is missing"):
        parse_job(resolved_job_spec(job(worker={"replicas": 3}), read_template(template(train(command=["a"])))))
    with pytest.raises(Invalid, match=r"spec.templateRef: ClusterTrainingTemplate t is not known here"):
        parse_job(job(**train(image="i", command=["python"])))


def test_the_template_that_a_job_keeps() -> None:
    """It counts for as long as the job names it; another description is no other template."""
    known = read_template(template({"backend": "mpi"}, description="for all"))
    assert known.hash == read_template(template({"backend": "mpi"})).hash != Template("", "", {}).hash
    assert known.hash == sha256(b'{"backend": "mpi"}').hexdigest()[:16], "jobs store it, and later operators compare it"
    status = {"template": {"kind": known.kind, "name": known.name, "hash": known.hash, "spec": known.spec}}
    assert resolved_job_spec({**job(), "status": status})["spec"] == {"backend": "mpi"}
    whole = {"template": {**status["template"], "spec": train(image="i", command=["python"])}}
    assert parse_job({**job(), "status": whole}).spec.worker.template["spec"]["containers"][0]["image"] == "i"
    other = {**job(templateRef={"name": "other"}), "status": status}
    assert stored_template(other) is None
    assert resolved_job_spec(other) == other


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"job": "x"}, "spec.job", id="no-mapping"),
        pytest.param({"job": {}, "image": "x"}, "spec.image", id="unknown-field"),
        pytest.param({"job": {"worker": {"replicas": 2}}}, "spec.job.worker.replicas", id="the-jobs-own"),
        pytest.param({"job": {"templateRef": {"name": "t"}}}, "spec.job.templateRef", id="a-template-of-a-template"),
        pytest.param({"job": {"launcher": {"x": "x" * MAX_BYTES}}}, "spec.job", id="large"),
    ],
)
def test_templates_that_are_none(spec: Json, path: str) -> None:
    """Refused with the field."""
    with pytest.raises(Invalid) as refused:
        read_template({**template({}), "spec": spec})
    assert [problem.path for problem in refused.value.problems] == [path]


@pytest.mark.parametrize("reference", ["t", {}, {"name": 1}, {"name": "t", "kind": "Pod"}, {"name": "t", "x": 1}])
def test_references_that_are_none(reference: Any) -> None:
    """Refused with the field and what it may be."""
    with pytest.raises(Invalid, match=r"spec.templateRef: is .*expected a name, and a kind of Cluster"):
        named_template(job(templateRef=reference))


def test_a_job_that_is_too_deep() -> None:
    """It ends no process."""
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    with pytest.raises(Invalid, match="levels deep"):
        merged_spec({"launcher": {"template": deep}}, {})
    with pytest.raises(Invalid, match="levels deep"):
        read_template(template(deep))
