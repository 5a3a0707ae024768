"""What `import ringtrain` brings along."""

import subprocess
import sys


def test_ringtrain_alone_imports_no_framework():
    """Nor anything else that only some jobs need."""
    program = "import sys, ringtrain; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "ringtrain" in loaded
    assert not {"torch", "tensorflow", "keras", "google.protobuf", "click"} & set(loaded)
