"""kubectl's plugin `dtj` for krew: archives of one program each, and the manifest that names them.

    python charts/plugin.py archive PROGRAM FOLDER     PROGRAM and the license, for the machine that this runs on
    python charts/plugin.py manifest FOLDER VERSION    .krew.yaml filled in for the archives in FOLDER, to stdout

Of the standard library only. krew-release-bot fills .krew.yaml in when a release is made; the manifest of this
program has the same fields, with the archives' places here, so that `kubectl krew install --manifest` takes it.
"""

import hashlib
import platform
import re
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / ".krew.yaml"
PROGRAM = "kubectl-dtj"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# One platform of the template: its selector, and the call that names its archive.
_PLATFORM = re.compile(r"  - selector:\n(?:    .*\n)+")
_ARCHIVE = re.compile(r'\{\{addURIAndSha "[^"]*/([^"/]+\.tar\.gz)" \.TagName \}\}')


def this_platform() -> str:
    """As archives are called, such as linux-amd64."""
    machine = platform.machine()
    return f"{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"


def pack(program: Path, folder: Path) -> Path:
    """An archive of the program, which is executable in it, and the license."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PROGRAM}-{this_platform()}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(program, PROGRAM, filter=_of_nobody)
        archive.add(ROOT / "LICENSE", "LICENSE", filter=_of_nobody)
    return path


def manifest(folder: Path, version: str) -> str:
    """krew's manifest of the archives in `folder`. Raises SystemExit where there is none of a platform of ours."""
    text = TEMPLATE.read_text().replace("{{ .TagName }}", f"v{version}")
    found = [entry for entry in _PLATFORM.findall(text) if (folder / _name(entry)).exists()]
    if not found:
        raise SystemExit(f"{folder} has no archive that .krew.yaml names: {', '.join(map(_name, _entries(text)))}")
    head = text[: text.index("  - selector:")]
    head = "\n".join(line for line in head.splitlines() if not line.startswith("#"))
    return f"{head}\n" + "".join(_filled_in(entry, folder / _name(entry)) for entry in found)


def _entries(text: str) -> list[str]:
    return _PLATFORM.findall(text)


def _name(entry: str) -> str:
    match = _ARCHIVE.search(entry)
    assert match is not None, f"{TEMPLATE} names no archive in {entry!r}"
    return match[1]


def _filled_in(entry: str, archive: Path) -> str:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return _ARCHIVE.sub(f"uri: {archive.resolve().as_uri()}\n    sha256: {digest}", entry)


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.name == PROGRAM else 0o644
    return entry


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["archive", program, folder]:
            print(pack(Path(program), Path(folder)))
        case ["manifest", folder, version]:
            print(manifest(Path(folder), version), end="")
        case _:
            sys.exit(__doc__)
