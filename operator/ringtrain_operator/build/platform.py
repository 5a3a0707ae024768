"""Where a pod with the worker's image has to run: on nodes of the platform that the worker's template names."""

import copy
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

# Labels of every node that say which images it can run, and their names before Kubernetes 1.14.
_LABELS = frozenset(
    {"kubernetes.io/arch", "kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/os"},
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def run_where_image_does(spec: Json, worker: Mapping[str, Any]) -> None:
    """Add to a pod's spec, in place, what the worker's says of architecture and operating system.

    All nodes of that platform may have the taints that the worker tolerates: what is bound to it tolerates them.
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
    """What is required of a node's platform, a node satisfying one term; empty: any may do."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        said = [one for one in term.get("matchExpressions") or () if one.get("key") in _LABELS]
        if not said:
            return []
        terms.append({"matchExpressions": said})
    return [term for index, term in enumerate(terms) if term not in terms[:index]]


def _require_node_terms(spec: Json, terms: list[Json]) -> None:
    """Add `terms` to what the spec requires of its node: one of its own has to hold, and one of these."""
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
