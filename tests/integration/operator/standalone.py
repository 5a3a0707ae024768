"""The self-contained directory with agent and launcher, and small root file systems that it is tried in."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.commands import completed

ROOT = Path(__file__).parents[3]
_LIBRARY = re.compile(r"(?:=> |^\s*)(/\S+) \(0x", re.MULTILINE)
BUSYBOX = Path("/bin/busybox")


def why_not_built() -> str:
    """Return the reason that the directory cannot be built on this machine; empty if it can."""
    missing = [name for name in ("cc", "strip", "ldd") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def build_standalone(target: Path) -> Path:
    """Make the directory as the Dockerfile does, of this environment's Python."""
    command = [sys.executable, str(ROOT / "worker_image" / "standalone" / "build.py"), str(target), "storage"]
    subprocess.run(command, check=True, timeout=300)
    return target


def shell_only(root: Path) -> Path:
    """A root with one static program, busybox, under the names of a shell's tools; no Python, no C library."""
    (root / "bin").mkdir(parents=True)
    shutil.copy2(BUSYBOX, root / "bin" / "busybox")
    names = completed([BUSYBOX, "--list"], check=True).stdout.split()
    for name in names:
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    return root


def add_with_libraries(root: Path, files: Iterable[Path]) -> None:
    """Copy programs and modules into `root`, each to its place here, with all that they are linked with."""
    wanted = list(files)
    listed = completed(["ldd", *map(str, wanted)]).stdout
    for path in (*wanted, *map(Path, set(_LIBRARY.findall(listed)))):
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(path.resolve(), target)
