"""What exists, as values: the only folder that knows how the API, a kubelet and the launcher say things."""

from .last_words import failure_in, last_words
from .model import Foreign, LauncherReport, ObjectRef, Observed, PodView, Refusal
from .pods import owned_by, owner_name, read_report, status_token, view_pod
from .storable import is_finite

__all__ = [
    "Foreign",
    "LauncherReport",
    "ObjectRef",
    "Observed",
    "PodView",
    "Refusal",
    "failure_in",
    "is_finite",
    "last_words",
    "owned_by",
    "owner_name",
    "read_report",
    "status_token",
    "view_pod",
]
