"""Small executables that start a module of this package quickly."""

import shlex
import sys
from pathlib import Path

# The package's own __init__ imports numpy and gRPC, which takes longer than everything that the module does: a
# stand-in with the same search path takes its place. -I and -S: neither the user's environment nor site-packages.
_START = """\
import sys, types
package = types.ModuleType("ringtrain")
package.__path__ = [{path!r}]
sys.modules["ringtrain"] = package
from ringtrain_job.standalone import restore_environment
restore_environment()
from {module} import main
sys.exit(main(sys.argv[1:]))
"""


def write_shim(path: Path, module: str) -> None:
    """Make `path` an executable that calls `main(arguments)` of `module`, of the standard library's means only."""
    start = _START.format(path=str(Path(__file__).parents[1]), module=module)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS -c {shlex.quote(start)} "$@"\n')
    path.chmod(0o700)
