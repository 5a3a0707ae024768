"""Build a directory with agent, launcher and a Python for pods of any image: `python build.py TARGET [EXTRA...]`.

EXTRA: extras of ringtrain whose packages the directory should contain, such as s3 for logs in an object store. It
contains all installed plugins that extend the launcher, the agent or the commands.

Run it with the Python that the directory should contain; ringtrain must be installed in it. It needs ldd, strip, and a
C compiler (CC) that can link statically.

    TARGET/bin/ringtrain, TARGET/python/bin/python3   a static program that starts the Python below, see start.c
    TARGET/python/lib/ld.so, *.so    the C library's loader, and every shared library that is needed
    TARGET/python/lib/python3    the interpreter
    TARGET/python/lib/pythonXY.zip   bytecode of the standard library and of pure Python packages
    TARGET/python/lib/pythonX.Y/     packages with compiled modules or data, and metadata of all distributions

Python has a separate folder because this directory is the root of an image, and Python does not look for its library
in a root.
"""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Set
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).parent
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Requirements of ringtrain that only training code needs.
OF_TRAINING = {"numpy", "ml-dtypes", "hpack"}
# Parts of the standard library that neither agent nor launcher imports.
UNUSED = (
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtle*", "turtledemo"),
    *("ensurepip", "lib2to3", "pydoc*", "doctest.py", "venv", "distutils", "unittest", "sqlite3", "curses", "dbm"),
    *("config-*", "xmlrpc", "_pydecimal.py", "_pyio.py", "antigravity.py", "this.py", "LICENSE.txt"),
    *("_test*", "_tkinter*", "_ctypes_test*", "xx*", "_xx*", "_curses*", "readline*", "nis.*", "_sqlite3*", "_dbm*"),
    *("_gdbm*", "audioop*", "ossaudiodev*", "_crypt*", "spwd*", "_lsprof*"),
    *("*.a", "*.pyx", "*.pxd", "*.pyi", "*.c", "*.h", "*.rst", "macholib", "EXTERNALLY-MANAGED"),
)
# Files of packages that are not needed to run them, and Google's messages that no caller of OTLP imports.
_NOT_RUN = re.compile(
    r"(^|/)(\.\.|__pycache__|tests?)(/|$)|\.(pyx|pxd|pyi|c|cc|h|proto|md|typed)$|\.dist-info/"
    r"|^google/(api|cloud|gapic|iam|logging|longrunning|shopping|type)/|^obstore/(auth/|fsspec\.py)"
)
PACKAGE = '''"""Agent and launcher of ringtrain, without the training runtime, which is the image's own."""

from ringtrain_job.standalone import restore_environment

restore_environment()
'''
PROGRAM = '''"""Program that bin/ringtrain starts."""

from ringtrain_job.standalone import main

main()
'''
_PLUGIN = "ringtrain-"
# Entry points that the launcher, the agent and the command load; those of other groups are for training code.
_BESIDE_RANKS = re.compile(r"ringtrain\.(launcher|agent|commands)(\.|$)")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "native", "py.typed")
_ELF = b"\x7fELF"
_RESOLVED = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def build(target: Path, extras: Set[str]) -> None:
    """Build the standalone directory `target`, which must be empty or not exist."""
    python = target / "python"
    library = python / "lib" / VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    # Into the standard library's folder: which other folders Python searches differs between Linux distributions.
    plugins = _plugins()
    for name in sorted(_needed({"ringtrain": extras, **dict.fromkeys(plugins, frozenset[str]())})):
        _copy_distribution(metadata.distribution(name), library)
    _copy_ringtrain(library)
    for plugin in plugins.values():
        _copy_plugin(plugin, library)
    _copy_programs(target, python)
    _copy_libraries(python / "lib")
    _strip(python / "lib")
    _compile(library, target)
    _zip_packages(library, python / "lib" / f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _compile(library: Path, target: Path) -> None:
    """Replace all Python sources in `library` by bytecode."""
    # Unchecked: a copy of the directory need not preserve the files' times.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(library, stripdir=target, quiet=2, legacy=True, invalidation_mode=unchecked)
    for source in library.rglob("*.py"):
        source.unlink()


def _zip_packages(library: Path, archive: Path) -> None:
    """Move pure Python modules and packages from `library` into the zip file `archive`, from which Python imports."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for entry in sorted(library.iterdir()):
            inside = [entry, *sorted(entry.rglob("*"))]
            if entry.suffix == ".dist-info" or any(path.suffix != ".pyc" for path in inside if path.is_file()):
                continue
            for path in inside:  # folders, too: a namespace package has only a folder
                file.write(path, path.relative_to(library))
            if entry.name == "os.pyc":  # Python finds its library's folder by this file
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _plugins() -> dict[str, metadata.Distribution]:
    """Return the installed plugins that extend the launcher, the agent or the commands, by name."""
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        name = distribution.name.lower().replace("_", "-")
        if name.startswith(_PLUGIN) and _packages_beside_ranks(distribution):
            found.setdefault(name, distribution)  # the first on the path, as Python does
    return found


def _packages_beside_ranks(distribution: metadata.Distribution) -> set[str]:
    """Return the packages of `distribution` that the launcher, the agent or the commands load."""
    return {point.module.partition(".")[0] for point in distribution.entry_points if _BESIDE_RANKS.match(point.group)}


def _needed(roots: Mapping[str, Set[str]]) -> set[str]:
    """Return the names of all distributions that `roots`, with their chosen extras, require, directly or not."""
    open_ = [(name, frozenset(extras)) for name, extras in roots.items()]
    found = set(open_)
    while open_:
        distribution, wanted = open_.pop()
        for line in metadata.distribution(distribution).requires or ():
            requirement, _, marker = line.partition(";")
            name, extras = _parsed(requirement)
            extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
            if (extra and extra[1] not in wanted) or name in OF_TRAINING or (name, extras) in found:
                continue
            try:
                metadata.distribution(name)
            except metadata.PackageNotFoundError:
                if name.startswith(_PLUGIN):
                    raise SystemExit(f"{name} is required, but not installed in this Python") from None
                continue  # for another platform
            found.add((name, extras))
            open_.append((name, extras))
    return {name for name, _ in found} - set(roots)


def _parsed(requirement: str) -> tuple[str, frozenset[str]]:
    """Return the distribution's name in a requirement, and its extras if it is a plugin."""
    name, extras = re.findall(r"^([A-Za-z0-9._-]+)\s*(?:\[(.*?)\])?", requirement.strip())[0]
    name = name.lower().replace("_", "-")
    return name, frozenset(extras.replace(" ", "").split(",") if extras and name.startswith(_PLUGIN) else ())


def _copy_distribution(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        if _NOT_RUN.search(str(file)) or not (source := Path(str(file.locate()))).is_file():
            continue
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, packages / file)
    _write_metadata(distribution, packages)


def _copy_ringtrain(packages: Path) -> None:
    library, job = _folder("ringtrain"), _folder("ringtrain_job")
    shutil.copytree(job, packages / "ringtrain_job", ignore=_LEFT_OUT)
    shutil.copytree(library / "shared", packages / "ringtrain" / "shared", ignore=_LEFT_OUT)
    shutil.copy2(library / "errors.py", packages / "ringtrain")
    (packages / "ringtrain" / "__init__.py").write_text(PACKAGE)
    (packages / "ringtrain" / "__main__.py").write_text(PROGRAM)
    _write_metadata(metadata.distribution("ringtrain"), packages)


def _copy_plugin(plugin: metadata.Distribution, packages: Path) -> None:
    """Copy a plugin's package folders. (An editable installation has no list of files.)"""
    for package in _packages_beside_ranks(plugin):
        shutil.copytree(_folder(package), packages / package, ignore=_LEFT_OUT)
    _write_metadata(plugin, packages)


def _write_metadata(distribution: metadata.Distribution, packages: Path) -> None:
    """Write the metadata that the launcher and the commands read: name, version and entry points."""
    name, version = distribution.name, distribution.version
    about = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if points := distribution.read_text("entry_points.txt"):
        (about / "entry_points.txt").write_text(points)


def _folder(package: str) -> Path:
    spec = util.find_spec(package)
    assert spec is not None, f"{package} is not installed in this Python"
    (folder,) = spec.submodule_search_locations or ()
    return Path(folder)


def _copy_programs(target: Path, python: Path) -> None:
    shutil.copy2(os.path.realpath(sys.executable), python / "lib" / "python3")
    (target / "bin").mkdir()
    (python / "bin").mkdir()
    compiler = os.environ.get("CC", "cc")
    program = target / "bin" / "ringtrain"
    words = [compiler, "-std=gnu11", "-Os", "-static", "-s", "-Wall", "-Werror", str(HERE / "start.c")]
    subprocess.run([*words, "-o", str(program)], check=True)
    os.link(program, python / "bin" / "python3")


def _copy_libraries(library: Path) -> None:
    """Copy all shared libraries that the programs and modules in `library` need."""
    files = [path for path in library.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    for name, path in _resolved(files):
        wanted = "ld.so" if name.startswith("ld-") else name
        if not path.is_relative_to(library) and not (library / wanted).exists():
            shutil.copy2(os.path.realpath(path), library / wanted)
    # Some libraries also need the loader, under that name.
    if not (library / "ld.so").exists():
        raise SystemExit(f"ldd shows no loader for {files[0]}: is it linked statically?")


def _strip(library: Path) -> None:
    """Remove debugging symbols from all programs and libraries, which halves the directory's size."""
    files = [path for path in library.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    for path in files:
        path.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", *map(str, files)], check=True)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == _ELF


def _resolved(files: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each shared library that `files` need, directly or not."""
    listed = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found$", listed, re.MULTILINE)))
    if missing:
        raise SystemExit(f"shared libraries that Python needs are not installed: {', '.join(missing)}")
    for wanted, path in _RESOLVED.findall(listed):
        yield wanted or Path(path).name, Path(path)


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute(), set(sys.argv[2:]))
