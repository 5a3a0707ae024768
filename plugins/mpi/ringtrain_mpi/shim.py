"""Executables that call `main` of one module of this package and start faster than the `ringtrain` command."""

import shlex
import sys
from pathlib import Path

from ringtrain.shared import contract
from ringtrain_job import standalone

# Importing the packages' own __init__ takes longer than the module's work: empty modules with the same search paths
# replace them. -I and -S: without the user's environment and site-packages.
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
    """Create an executable at `path` that calls `main(arguments)` of `module`. The module may import only the standard
    library."""
    files = {"ringtrain.shared": contract.__file__, "ringtrain_job": standalone.__file__, "ringtrain_mpi": __file__}
    folders = {name.partition(".")[0]: str(Path(file).parents[name.count(".")]) for name, file in files.items()}
    start = _START.format(folders=folders, module=module)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS -c {shlex.quote(start)} "$@"\n')
    path.chmod(0o700)
