"""Construction of the CustomResourceDefinitions from the models of `spec` and `status`."""

import re
from typing import Any

from .. import contract
from ..spec.base import Rule, Schema
from ..spec.job import JobSpec
from ..spec.parse import ANOTHER_NAME, MAX_NAME_LENGTH, NAME_PATTERN, RESERVED_NAMES
from ..spec.parts import CLUSTER, TEMPLATE_KINDS, TEMPLATE_PLURALS, TemplateKind
from ..spec.template import PartialTemplate
from ..spec.training_template import OWN
from ..spec.updates import MAY_CHANGE
from ..status.model import JobStatus
from .schema import object_schema

COLUMNS = (
    ("State", "string", ".status.state", "The conditions in one word."),
    ("Workers", "string", ".status.workers", "Ready workers of wanted workers."),
    ("Restarts", "integer", ".status.restarts", "Restarts counted against backoffLimit."),
    ("Progress", "string", ".status.progressSummary", "Completed steps of all steps."),
    ("Reason", "string", ".status.reason", "Cause of the state."),
    ("Formation", "integer", ".status.elastic.formation", "Generation of the current world of an elastic job."),
    ("Disruptions", "integer", ".status.disruptions", "Restarts that the job did not cause."),
    ("Age", "date", ".metadata.creationTimestamp", "Time of its creation."),
    ("Message", "string", ".status.message", "What it waits for, or how it ended."),
)
WIDE_COLUMNS = frozenset({"Reason", "Formation", "Disruptions", "Message"})
_OF_WHOLE_JOBS = frozenset({"default", "required", "x-kubernetes-validations"})


def build_crd() -> dict[str, Any]:
    """Return the manifest of the job's CRD, ready for kubectl apply."""
    names = {
        "kind": contract.KIND,
        "listKind": f"{contract.KIND}List",
        "plural": contract.PLURAL,
        "singular": contract.KIND.lower(),
        "shortNames": [contract.SHORT_NAME],
        "categories": ["all"],
    }
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
    subresources = {"subresources": {"status": {}, "scale": scale}}
    return _generated_crd(names, "Namespaced", columns, _crd_resource(), subresources)


def _generated_crd(
    names: dict[str, Any], scope: str, columns: list[dict[str, Any]], schema: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    version = {
        "name": contract.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        **more,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{contract.GROUP}",
            "labels": {contract.LABEL_NAME: "ringtrain-operator"},
        },
        "spec": {"group": contract.GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def build_template_crds() -> list[dict[str, Any]]:
    """Return the CRDs of TrainingTemplate and ClusterTrainingTemplate."""
    return [_template_crd(kind) for kind in TEMPLATE_KINDS]


def _template_crd(kind: TemplateKind) -> dict[str, Any]:
    plural = TEMPLATE_PLURALS[kind]
    description = {"type": "string", "maxLength": 4096, "description": "Purpose of the template, and its users."}
    spec = {"description": description, "job": _crd_part_of_a_job()}
    column = {"name": "Description", "type": "string", "jsonPath": ".spec.description"}
    schema = {
        "type": "object",
        "description": "A part of a job's spec, for the jobs that name it in templateRef. Maturity: Experimental.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["job"], "properties": spec},
        },
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return _generated_crd(names, "Cluster" if kind == CLUSTER else "Namespaced", [column], schema, {})


def _crd_part_of_a_job() -> dict[str, Any]:
    """Return the schema of a template's spec.job: a job's spec without the fields in `OWN`.

    No field is required or has a default.
    """
    job: dict[str, Any] = _optional_schema(object_schema(JobSpec))
    job["description"] = "A part of a DistributedTrainingJob's spec, which jobs can omit."
    for *sections, field in OWN:
        inner = job
        for section in sections:
            inner = inner["properties"][section]
        del inner["properties"][field]
    return job


def _optional_schema(schema: Any) -> Any:
    """Return `schema` with all fields optional, and without rules and defaults."""
    if isinstance(schema, list):
        return [_optional_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _optional_schema(value) for key, value in schema.items() if key not in _OF_WHOLE_JOBS}
    if isinstance(properties := schema.get("properties"), dict):
        made["properties"] = {name: _optional_schema(value) for name, value in properties.items()}
    return made


def _crd_once_fixed(rule: Rule) -> dict[str, Any]:
    """Return a rule of the spec as a rule of the whole object, which applies only after the job has run."""
    of_spec = re.sub(r"\b(self|oldSelf)\.", r"\1.spec.", rule.cel)
    return {"rule": f"{MAY_CHANGE} || {of_spec}", "message": rule.message, "fieldPath": f".spec.{rule.path}"}


def _crd_spec() -> dict[str, Any]:
    """Return the schema of a job's spec, with weaker checks for a job with a template.

    For such a job only the merged spec must be valid, which the operator checks. So no field is required here, and
    rules over several sections apply only without a templateRef.
    """
    spec = object_schema(JobSpec)
    spec.pop("required")
    worker = spec["properties"]["worker"] = {**spec["properties"]["worker"], "default": {}}
    worker.pop("required")
    description = worker["properties"]["template"]["description"]
    worker["properties"]["template"] = {"description": description, **_schema_of(PartialTemplate)}
    for rule in spec["x-kubernetes-validations"]:
        if "oldSelf" not in rule["rule"]:
            cel = rule["rule"]
            rule["rule"] = f"has(self.templateRef) || {f'({cel})' if '&&' in cel or '?' in cel else cel}"
    return spec


def _schema_of(annotated: Any) -> dict[str, Any]:
    """Return the OpenAPI schema that a `Schema` marker in the annotation contains."""
    (openapi,) = (mark.openapi for mark in annotated.__metadata__ if isinstance(mark, Schema))
    return dict(openapi)


def _crd_resource() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A data-parallel training job: a launcher and workers that train one model together.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _crd_spec(),
            "status": object_schema(JobStatus),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.size() <= {MAX_NAME_LENGTH}"
                f" && self.metadata.name.matches('{NAME_PATTERN}')",
                "message": "metadata.name becomes the name of a Service and of hosts: expected a letter first, then "
                f"only lower-case letters, digits and '-', and at most {MAX_NAME_LENGTH} characters",
            },
            {
                "rule": f"!(self.metadata.name in {list(RESERVED_NAMES)})",
                "message": f"metadata.name is the name of another host or Service; {ANOTHER_NAME}",
            },
            *(_crd_once_fixed(rule) for rule in JobSpec.RULES if rule.once_fixed),
        ],
    }
