"""`ringtrain.popart` on one and two ranks, with a stand-in for PopART."""

import subprocess
import sys

import pytest
from frameworks.harness import Checks
from support.deadlines import patient

CHECKS = Checks("ringtrain.popart", ("popart_training",))


@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [1, 2], ids=lambda size: f"ranks-{size}")
def test_popart(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)


def test_popart_is_imported_when_it_is_used():
    """Without PopART the module can be imported, and init() called."""
    script = "import sys, ringtrain.popart as hvd; hvd.init(); assert 'popart' not in sys.modules; hvd.shutdown()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patient(60))
