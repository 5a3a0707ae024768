"""What exists, as values: the only folder that knows how the API, a kubelet and the launcher say things."""

from .model import Foreign, LauncherReport, ObjectRef, Observed, PodView, Refusal
from .pods import OtherStatusVersion, owned_by, owner_name, read_report, status_token, view_pod
from .storable import is_finite
from .termination import failure_in, termination_of

__all__ = [
    "Foreign",
    "LauncherReport",
    "ObjectRef",
    "Observed",
    "OtherStatusVersion",
    "PodView",
    "Refusal",
    "failure_in",
    "is_finite",
    "owned_by",
    "owner_name",
    "read_report",
    "status_token",
    "termination_of",
    "view_pod",
]
