"""Training over slow links: each rank trains alone for many steps, then all average their weight changes."""

from ringtrain_diloco.arguments import DiLoCoLocalWeights
from ringtrain_diloco.framework import OnHostDiLoCo
from ringtrain_diloco.optimizer import DiLoCo

__all__ = ["DiLoCo", "DiLoCoLocalWeights", "OnHostDiLoCo"]
