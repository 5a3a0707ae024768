"""Jobs with DiLoCo that are scaled and drained at seeded moments; launcher, agents and ranks are real.

More seeds: make planned-changes KIND=diloco.planned:InDiLoCo SEEDS=300
"""

import importlib.util
import os

import pytest
from frameworks.warm_python import shared_python
from support.planned_changes import judge

from diloco.training import FOLDERS

NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
_SEED = 0


@pytest.mark.parametrize("kind", ["InDiLoCo", pytest.param("InTorchDiLoCo", marks=NEEDS_TORCH)])
def test_a_planned_change_loses_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it lose what ranks have done alone since the last synchronization."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(FOLDERS))
    python = shared_python("torch" if kind == "InTorchDiLoCo" else "ringtrain.elastic")
    assert not (wrong := judge(_SEED, f"diloco.planned:{kind}", python)), wrong
