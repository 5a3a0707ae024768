"""The CustomResourceDefinition, from the models."""

from __future__ import annotations

import re
from typing import Any

from .. import contract
from ..spec.base import Rule
from ..spec.job import JobSpec
from ..spec.parse import MAX_NAME_LENGTH, NAME_PATTERN
from ..spec.updates import MAY_CHANGE
from ..status.model import JobStatus
from .schema import object_schema

COLUMNS = (
    ("State", "string", ".status.state", "The conditions in one word."),
    ("Workers", "string", ".status.workers", "Workers ready of workers wanted."),
    ("Restarts", "integer", ".status.restarts", "Restarts counted against backoffLimit."),
    ("Progress", "string", ".status.progressSummary", "Steps done of steps wanted."),
    ("Reason", "string", ".status.reason", "Why it is in this state."),
    ("Formation", "integer", ".status.elastic.formation", "Number of the present world of an elastic job."),
    ("Disruptions", "integer", ".status.disruptions", "Restarts that were not the job's fault."),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it exists."),
)
WIDE_COLUMNS = frozenset({"Reason", "Formation", "Disruptions"})


def build_crd() -> dict[str, Any]:
    """The whole manifest, ready for kubectl apply."""
    names = {
        "kind": contract.KIND,
        "listKind": f"{contract.KIND}List",
        "plural": contract.PLURAL,
        "singular": contract.KIND.lower(),
        "shortNames": [contract.SHORT_NAME],
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{contract.PLURAL}.{contract.GROUP}",
            "labels": {contract.LABEL_NAME: "ringtrain-operator"},
        },
        "spec": {"group": contract.GROUP, "names": names, "scope": "Namespaced", "versions": [_version()]},
    }


def _version() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": description}
        | ({"priority": 1} if name in WIDE_COLUMNS else {})  # shown by kubectl get -o wide
        for name, kind, path, description in COLUMNS
    ]
    scale = {
        "specReplicasPath": ".spec.worker.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "name": contract.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": {"status": {}, "scale": scale},
        "schema": {"openAPIV3Schema": _resource()},
    }


def _once_fixed(rule: Rule) -> dict[str, Any]:
    """The rule on the whole object, whose status says whether the job has run."""
    of_spec = re.sub(r"\b(self|oldSelf)\.", r"\1.spec.", rule.cel)
    return {"rule": f"{MAY_CHANGE} || {of_spec}", "message": rule.message, "fieldPath": f".spec.{rule.path}"}


def _resource() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A data-parallel training job: a launcher and workers that train one model together.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": object_schema(JobSpec),
            "status": object_schema(JobStatus),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.size() <= {MAX_NAME_LENGTH}"
                f" && self.metadata.name.matches('{NAME_PATTERN}')",
                "message": "metadata.name becomes a Service and host names: it must begin with a letter, hold "
                f"only lower-case letters, digits and '-', and have at most {MAX_NAME_LENGTH} characters",
            },
            *(_once_fixed(rule) for rule in JobSpec.RULES if rule.once_fixed),
        ],
    }
