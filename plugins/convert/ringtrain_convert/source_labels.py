"""Labels of the original operator's pods: common ones are copied, references to a pod's index are replaced."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ringtrain_operator.contract import LABEL_WORKER_INDEX

TRAINING = "training.kubeflow.org/"
JOBSET = "jobset.sigs.k8s.io/"
_JOB = "batch.kubernetes.io/"
# Index labels, whose values differ between the pods of a role, from 0.
_INDEX = frozenset({f"{TRAINING}replica-index", f"{_JOB}job-completion-index"})
_FIELD_PATH = re.compile(r"metadata\.(?:labels|annotations)\['([^']+)'\]")


def add_source_labels(
    template: dict[str, Any], labels: Mapping[str, str], path: str, notes: list[str], absent: Collection[str] = ()
) -> None:
    """Add `labels` of the original pods to a template and replace references to their index label, in place.

    References to other labels of the source are reported in `notes`, except for `absent`, which its pods do not have.
    """
    metadata = template["metadata"] = template.get("metadata") or {}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    named = set(_source_labels_in(template["spec"]))
    template["spec"] = with_texts(template["spec"], _with_our_index)
    if indexes := sorted(named & _INDEX):
        notes.append(f"{path}: {', '.join(indexes)} becomes {LABEL_WORKER_INDEX}, which counts all workers from 0")
    for label in sorted(named - _INDEX - labels.keys() - {*absent}):
        notes.append(f"{path} reads the label {label}, which no pod has here: leave it out")


def _source_labels_in(value: Any) -> Iterator[str]:
    """Yield the original operator's labels to which a pod's spec refers, by a field or a selector."""
    for text in texts_of(value):
        found = _FIELD_PATH.fullmatch(text)
        name = found[1] if found else text
        if re.fullmatch(rf"(?:{TRAINING}|{JOBSET}|{_JOB})[\w.-]+", name):
            yield name


def texts_of(value: Any) -> Iterator[str]:
    """Yield all keys and strings in a value of a manifest."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)
    elif isinstance(value, str):
        yield value


def with_texts(value: Any, replaced: Callable[[str], str]) -> Any:
    """Return a copy of a value of a manifest whose keys and strings are replaced."""
    if isinstance(value, Mapping):
        return {with_texts(key, replaced): with_texts(inner, replaced) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_texts(inner, replaced) for inner in value]
    return replaced(value) if isinstance(value, str) else value


def _with_our_index(text: str) -> str:
    found = _FIELD_PATH.fullmatch(text)
    if found and found[1] in _INDEX:
        return f"metadata.labels['{LABEL_WORKER_INDEX}']"
    return LABEL_WORKER_INDEX if text in _INDEX else text
