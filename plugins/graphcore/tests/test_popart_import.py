"""`ringtrain.popart` can be imported without PopART."""

import subprocess
import sys

from support.deadlines import patient


def test_popart_is_imported_when_it_is_used():
    """The module can be imported, and init() called, without PopART."""
    script = "import sys, ringtrain.popart as hvd; hvd.init(); assert 'popart' not in sys.modules; hvd.shutdown()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patient(60))
