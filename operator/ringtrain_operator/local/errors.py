"""What a pod may ask for that one machine cannot give."""

from __future__ import annotations

from ..errors import OperatorError


class LocalUnsupported(OperatorError):
    """The pod needs something that only a cluster has."""
