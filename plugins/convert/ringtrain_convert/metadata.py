"""Code for all converters: the converted job, its labels and annotations. Labels and annotations of the user are
copied, those of tools are not."""

import copy
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringtrain_operator.contract import API_VERSION, KIND
from ringtrain_operator.errors import Invalid, Problem, spelling_hint
from ringtrain_operator.spec.job import QUEUE_LABEL
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.pod_schema import packaged_pod_spec_schema
from ringtrain_operator.spec.reserved import LABELS
from ringtrain_operator.spec.template import shape_problems
from ringtrain_operator.spec.training_container import DEFAULT_CONTAINER, training_container_index

# With these kubectl, Argo CD, Helm and Flux mark their objects. The new job does not belong to their releases and sets
# yet, and would be pruned or overwritten as if it did.
_OWNERS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "argocd.argoproj.io/tracking-id",
        "argocd.argoproj.io/instance",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/managed-by",
        "meta.helm.sh/release-name",
        "meta.helm.sh/release-namespace",
        "kustomize.toolkit.fluxcd.io/name",
        "kustomize.toolkit.fluxcd.io/namespace",
        "helm.toolkit.fluxcd.io/name",
        "helm.toolkit.fluxcd.io/namespace",
    }
)
# Set by the operators that are replaced.
_SOURCES = ("training.kubeflow.org/", "trainer.kubeflow.org/", "jobset.sigs.k8s.io/")
_KINDS = ("labels", "annotations")


@dataclass(frozen=True)
class Converted:
    """A converted manifest. `notes`: differences that the user should know, one sentence each. `others`: objects that
    the original operator creates for such a job."""

    manifest: dict[str, Any]
    notes: tuple[str, ...]
    others: tuple[dict[str, Any], ...] = ()


def converted_manifest(spec: dict[str, Any], *metadata: Mapping[str, Any], notes: list[str]) -> Converted:
    """Return the job with this `spec` and the user's metadata of the objects in `metadata`. Raises Invalid."""
    carried = _carried_metadata(*metadata, notes=notes)
    _leave_suspension_to_queue(spec, carried, notes)
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": carried, "spec": spec}
    parse_job(manifest)
    return Converted(manifest, tuple(dict.fromkeys(notes)))


def unknown_fields(obj: Mapping[str, Any], sections: Mapping[str, set[str]], where: str) -> Iterator[str]:
    """Yield a note for each field of `obj` that its section does not have. `sections`: their fields, by path. `where`:
    part of the note's text."""
    for path, known in sections.items():
        section: Any = functools.reduce(lambda inner, name: inner.get(name) or {}, path.split("."), obj)
        for name in sorted(set(section) - known):
            hint = spelling_hint(name, sorted(known))
            yield f"{path}.{name} is left out: it is no field {where}" + (f"; {hint}" if hint else "")


def checked_template(template: Any, path: str) -> dict[str, Any]:
    """Return a pod template. Raises Invalid if it has a wrong shape or no containers."""
    template = template or {}
    problems = shape_problems(template, path)
    if not problems and not (template.get("spec") or {}).get("containers"):
        problems = [Problem(f"{path}.spec.containers", "is empty")]
    if problems:
        raise Invalid(problems)
    return dict(template)


def missing_field_problem(
    section: Mapping[str, Any], path: str, field: str, known: Collection[str], message: str
) -> Problem:
    """Return a problem about `field`, which `section` at `path` lacks, or about a key that is a misspelt `field`.
    `known`: other fields of such a section. `message`: text about the lack."""
    for key in section.keys() - {field, *known}:
        if hint := spelling_hint(key, [field]):
            return Problem(f"{path}.{key}", f"is not a field here; {hint}")
    return Problem(f"{path}.{field}", message)


def _carried_metadata(*metadata: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return name and namespace of the first object, and labels and annotations that users set on any object."""
    made = {key: metadata[0][key] for key in ("name", "generateName", "namespace") if metadata[0].get(key)}
    for kind in _KINDS:
        if found := _carried_fields(kind, metadata, _OWNERS, "metadata", notes):
            made[kind] = found
    return made


def carried_template(
    template: Mapping[str, Any], *outer: Mapping[str, Any], path: str, notes: list[str]
) -> dict[str, Any]:
    """Return a copy of a template with labels and annotations of `outer`, without restartPolicy or unknown fields."""
    made: dict[str, Any] = copy.deepcopy(dict(template))
    own = made.get("metadata") or {}
    for kind in _KINDS:
        found = _carried_fields(kind, (own, *outer), LABELS, f"{path}.metadata", notes)
        if found or own.get(kind):
            made["metadata"] = {**(made.get("metadata") or {}), kind: found}
    made["spec"].pop("restartPolicy", None)
    _drop_unknown_fields(made, path, notes)
    return made


def _drop_unknown_fields(template: dict[str, Any], path: str, notes: list[str]) -> None:
    """Remove fields that Kubernetes does not know from `template` in place, and append a line for each to `notes`.

    An API server drops such fields from jobs of other operators, too.
    """
    for problem in packaged_pod_spec_schema().problems(template, ""):
        if problem.message.startswith("is not a field here"):
            *way, last = re.findall(r"[^.\[\]]+", problem.path)
            found: Any = template
            for key in way:
                found = found[int(key)] if isinstance(found, list) else found[key]
            if last in found:  # a name with a dot is not
                del found[last]
                hint = problem.message.partition("; ")[2]
                notes.append(f"{path}{problem.path} is left out: no pod has this field; {hint}")


def put_training_container_first(template: dict[str, Any], *names: str) -> dict[str, Any]:
    """Move the training container of a pod template to the front, in place, and return it."""
    pod, annotations = template["spec"], (template.get("metadata") or {}).get("annotations") or {}
    by_name = {str(one.get("name")): one for one in reversed(pod["containers"])}
    wanted = (name for name in (str(annotations.get(DEFAULT_CONTAINER)), *names) if name in by_name)
    found = by_name.get(next(wanted, ""), pod["containers"][training_container_index(template)])
    pod["containers"].sort(key=lambda one: one is not found)
    if training_container_index(template):
        metadata = template["metadata"] = template.get("metadata") or {}
        metadata["annotations"] = {**annotations, DEFAULT_CONTAINER: str(found.get("name"))}
    return dict(found)


class NoCommand(Invalid):
    """Error: a container has no command, so its image decides which program runs."""

    def __init__(self, path: str, image: str) -> None:
        self.image = image
        ways = f"write it out, or pass --registry or --entrypoint '{image}=COMMAND'"
        of = (
            f"the entrypoint of image {image} cannot be seen from here: {ways}"
            if image
            else "the image is missing, too: write both"
        )
        super().__init__([Problem(path, f"is missing; {of}")])


def take_command(container: dict[str, Any], path: str, notes: list[str]) -> list[str]:
    """Remove command and args from a container; return them as one list. Raises NoCommand if they name no program."""
    command, arguments = container.pop("command", None) or [], container.pop("args", None) or []
    if not command and (not arguments or arguments[0].startswith("-")):
        raise NoCommand(f"{path}.command", str(container.get("image") or ""))
    if not command:
        notes.append(f"{path}.args become the command: if the image has an entrypoint, write it in front of them")
    return [*command, *arguments]


def _leave_suspension_to_queue(spec: dict[str, Any], metadata: Mapping[str, Any], notes: list[str]) -> None:
    """Remove `suspend: true`, in place, from a job in a queue of Kueue, because Kueue has set it."""
    if (metadata.get("labels") or {}).get(QUEUE_LABEL) and spec["runPolicy"].pop("suspend", False):
        notes.append(
            f"suspend: true is left out because of the label {QUEUE_LABEL}: with it, a job does not enter its "
            "queue until you resume it"
        )


def _carried_fields(
    kind: str, metadata: tuple[Mapping[str, Any], ...], taken: frozenset[str], path: str, notes: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in metadata:
        found = {**(one.get(kind) or {}), **found}
    left = sorted(name for name in found if name in taken or str(name).startswith(_SOURCES))
    notes += [f"{path}.{kind}[{name}] is left out: it names the owner of the object" for name in left]
    return {name: value for name, value in found.items() if name not in left}
