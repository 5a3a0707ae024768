"""Small executables that start a module of this package, or of what it shares with the library, quickly."""

import shlex
import sys
from pathlib import Path

from ringtrain.shared import contract
from ringtrain_job import standalone

# What the library's own __init__ imports takes longer than everything that the module does: stand-ins with the
# same search paths take the packages' places. -I and -S: neither the user's environment nor site-packages.
_START = """\
import sys, types
for name, path in {folders!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from ringtrain_job.standalone import restore_environment
restore_environment()
from {module} import main
sys.exit(main(sys.argv[1:]))
"""


def write_shim(path: Path, module: str) -> None:
    """Make `path` an executable that calls `main(arguments)` of `module`, of the standard library's means only."""
    files = {"ringtrain.shared": contract.__file__, "ringtrain_job": standalone.__file__, "ringtrain_mpi": __file__}
    folders = {name.partition(".")[0]: str(Path(file).parents[name.count(".")]) for name, file in files.items()}
    start = _START.format(folders=folders, module=module)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS -c {shlex.quote(start)} "$@"\n')
    path.chmod(0o700)
