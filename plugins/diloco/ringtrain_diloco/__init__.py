"""Training over slow links: ranks train alone for many steps, then average what those steps changed."""

from ringtrain_diloco.arguments import DiLoCoLocalWeights
from ringtrain_diloco.framework import OnHostDiLoCo
from ringtrain_diloco.optimizer import DiLoCo

__all__ = ["DiLoCo", "DiLoCoLocalWeights", "OnHostDiLoCo"]
