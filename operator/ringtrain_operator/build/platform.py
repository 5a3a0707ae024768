"""Architecture and operating system of nodes for pods with the worker's image, from the worker's template."""

import copy
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

# Node labels for architecture and operating system, with their names before Kubernetes 1.14.
_LABELS = frozenset(
    {"kubernetes.io/arch", "kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/os"},
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def run_where_image_does(spec: Json, worker: Mapping[str, Any]) -> None:
    """Restrict a pod's spec, in place, to nodes with the architecture and system that the worker's template sets.

    The worker's tolerations are added, too, because all nodes of that platform may have the taints.
    """
    selector = {key: value for key, value in (worker.get("nodeSelector") or {}).items() if key in _LABELS}
    terms = _node_platform_terms(worker)
    if not selector and not terms:
        return
    if selector:
        spec["nodeSelector"] = {**selector, **(spec.get("nodeSelector") or {})}
    if terms:
        _require_node_terms(spec, terms)
    own = spec.get("tolerations") or []
    if tolerations := [*own, *(one for one in worker.get("tolerations") or () if one not in own)]:
        spec["tolerations"] = copy.deepcopy(tolerations)


def _node_platform_terms(spec: Mapping[str, Any]) -> list[Json]:
    """Return the node selector terms about the platform, of which one must match; empty if any node may run it."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        platform = [one for one in term.get("matchExpressions") or () if one.get("key") in _LABELS]
        if not platform:
            return []
        terms.append({"matchExpressions": platform})
    return [term for index, term in enumerate(terms) if term not in terms[:index]]


def _require_node_terms(spec: Json, terms: list[Json]) -> None:
    """Add `terms` to the spec's node requirements, in place: a node must match one existing term and one of these."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    of_nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    own = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    both = [
        {
            **mine,
            "matchExpressions": [*(mine.get("matchExpressions") or ()), *copy.deepcopy(term["matchExpressions"])],
        }
        for mine in own
        for term in terms
    ]
    of_nodes[_REQUIRED] = {"nodeSelectorTerms": both}
