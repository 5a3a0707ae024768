"""The CRD as a cluster's users meet it: names, columns, subresources, size."""

from pathlib import Path
from typing import Any

from support.documents import documents

from ringtrain_operator.spec.template import TEMPLATES

PATH = Path(__file__).parents[4] / "manifests" / "crd.yaml"
CRD: dict[str, Any]
(CRD,) = documents(PATH)
(VERSION,) = CRD["spec"]["versions"]


def test_it_is_small() -> None:
    """Far below what an annotation of kubectl's or an object of etcd's may hold."""
    assert PATH.stat().st_size < 100_000


def test_its_names() -> None:
    """`kubectl get dtj`, and `kubectl get all` has them too."""
    names = CRD["spec"]["names"]
    assert (names["kind"], names["plural"]) == ("DistributedTrainingJob", "distributedtrainingjobs")
    assert names["shortNames"] == ["dtj"]
    assert names["categories"] == ["all"]
    assert CRD["spec"]["scope"] == "Namespaced"


def test_its_subresources() -> None:
    """Status, and a scale of workers."""
    assert VERSION["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.worker.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_its_columns() -> None:
    """Those that the README shows, each a path of the schema."""
    columns = {c["name"]: c["jsonPath"] for c in VERSION["additionalPrinterColumns"]}
    narrow = [c["name"] for c in VERSION["additionalPrinterColumns"] if not c.get("priority")]
    assert narrow == ["State", "Workers", "Restarts", "Progress", "Age"]
    assert columns.keys() - narrow == {"Reason", "Formation", "Disruptions", "Message"}
    status = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    told = {path.removeprefix(".status.") for path in columns.values() if path.startswith(".status.")}
    assert "formation" in status["elastic"]["properties"]
    assert told - {"elastic.formation"} <= status.keys()
    assert len(told) == 8


def test_only_what_is_kubernetes_own_keeps_unknown_fields() -> None:
    """Pod templates, the logs' emptyDir, the template that a job keeps; elsewhere the schema counts."""
    places = open_places(VERSION["schema"]["openAPIV3Schema"], "")
    roots = {path for path in places if not any(path.startswith(f"{other}.") for other in places)}
    templates = {f".spec.{path}" for path in TEMPLATES}
    assert roots == {*templates, ".spec.logs.emptyDir", ".status.template.spec"}


def open_places(schema: dict[str, Any], path: str) -> list[str]:
    """Paths of schemas that preserve unknown fields."""
    own = [path] if schema.get("x-kubernetes-preserve-unknown-fields") else []
    inner = [p for name, s in (schema.get("properties") or {}).items() for p in open_places(s, f"{path}.{name}")]
    items = open_places(schema["items"], f"{path}[]") if "items" in schema else []
    return [*own, *inner, *items]
