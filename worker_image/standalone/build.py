"""`python build.py TARGET [EXTRA...]`: a self-contained directory with agent and launcher, for pods of any image.

EXTRA: of ringtrain's extras those whose packages it is to have, such as s3 for logs in an object store.

Run it with the Python that it is to have, in which ringtrain is installed. It needs a C compiler (CC) that can
link statically, strip, and ldd.

    TARGET/bin/ringtrain, TARGET/python/bin/python3   static programs that start the Python below, see start.c
    TARGET/python/lib/ld.so, *.so    the C library's loader, and every library that is needed
    TARGET/python/lib/python3, pythonX.Y/   the interpreter, its standard library, and what agent and launcher need

The image's root is this directory, and Python does not look for itself in a root: so it has a folder of its own.
"""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Set
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).parent
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Of ringtrain's requirements what only training code needs.
OF_TRAINING = {"numpy", "ml-dtypes", "hpack"}
UNUSED = (
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo"),
    *(
        "ensurepip",
        "lib2to3",
        "pydoc_data",
        "venv",
        "distutils",
        "unittest",
        "sqlite3",
        "curses",
        "dbm",
        "config-*",
    ),
    *(
        "_test*",
        "_tkinter*",
        "_ctypes_test*",
        "xx*",
        "_curses*",
        "readline*",
        "nis.*",
        "_sqlite3*",
        "_dbm*",
        "_gdbm*",
    ),
    *("*.a", "*.pyx", "*.pxd", "*.pyi", "*.c", "*.h", "EXTERNALLY-MANAGED"),
)
PACKAGE = '''"""Agent and launcher of ringtrain, without the training runtime, which is the image's own."""

from ringtrain_job.standalone import restore_environment

restore_environment()
'''
PROGRAM = '''"""What bin/ringtrain starts."""

from ringtrain_job.standalone import main

main()
'''
_ELF = b"\x7fELF"
_RESOLVED = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def build(target: Path, extras: Set[str]) -> None:
    """Make the directory; `target` must not exist or be empty."""
    python = target / "python"
    library = python / "lib" / VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    # Beside the standard library: which other folders a Python looks at differs between distributions.
    for name in sorted(_needed("ringtrain", extras)):
        _copy_distribution(metadata.distribution(name), library)
    _copy_ringtrain(library)
    for plugin in _plugins():
        _copy_plugin(plugin, library)
    _copy_programs(target, python)
    _copy_libraries(python / "lib")
    _strip(python / "lib")
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    # Unchecked: whoever copies the directory need not keep the files' times.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(library, stripdir=target, quiet=2, invalidation_mode=unchecked)


def _needed(root: str, extras: Set[str]) -> set[str]:
    """Distributions that `root` requires, with these of its extras, and what those require."""
    found: set[str] = set()
    open_ = [root]
    while open_:
        distribution = open_.pop()
        wanted = extras if distribution == root else set()
        for line in metadata.distribution(distribution).requires or ():
            requirement, _, marker = line.partition(";")
            name = re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0].lower().replace("_", "-")
            extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
            if (extra and extra[1] not in wanted) or name in OF_TRAINING | found:
                continue
            try:
                metadata.distribution(name)
            except metadata.PackageNotFoundError:  # of another platform
                continue
            found.add(name)
            open_.append(name)
    return found


def _copy_distribution(distribution: metadata.Distribution, packages: Path) -> None:
    skipped = re.compile(r"(^|/)(\.\.|__pycache__|tests?)(/|$)|\.(pyx|pxd|pyi|c|h)$")
    for file in distribution.files or ():
        if skipped.search(str(file)) or not (source := Path(str(file.locate()))).is_file():
            continue
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, packages / file)


def _copy_ringtrain(packages: Path) -> None:
    library, job = _folder("ringtrain"), _folder("ringtrain_job")
    left_out = shutil.ignore_patterns("__pycache__", "native")
    shutil.copytree(job, packages / "ringtrain_job", ignore=left_out)
    shutil.copytree(library / "shared", packages / "ringtrain" / "shared", ignore=left_out)
    shutil.copy2(library / "errors.py", packages / "ringtrain")
    (packages / "ringtrain" / "__init__.py").write_text(PACKAGE)
    (packages / "ringtrain" / "__main__.py").write_text(PROGRAM)
    _write_metadata(metadata.distribution("ringtrain"), packages)


def _plugins() -> list[metadata.Distribution]:
    """Installed plugins of agent or launcher, by their entry points."""
    groups = ("ringtrain.agent.", "ringtrain.launcher.")
    found = {
        distribution.name
        for distribution in metadata.distributions()
        if any(point.group.startswith(groups) for point in distribution.entry_points)
    }
    return [metadata.distribution(name) for name in sorted(found - {"ringtrain"})]


def _copy_plugin(plugin: metadata.Distribution, packages: Path) -> None:
    package = plugin.name.replace("-", "_")
    shutil.copytree(_folder(package), packages / package, ignore=shutil.ignore_patterns("__pycache__", "native"))
    _write_metadata(plugin, packages)


def _write_metadata(distribution: metadata.Distribution, packages: Path) -> None:
    """Write name, version and entry points, by which agent and launcher find their features and plugins."""
    about = packages / f"{distribution.name.replace('-', '_')}-{distribution.version}.dist-info"
    about.mkdir()
    text = f"Metadata-Version: 2.1\nName: {distribution.name}\nVersion: {distribution.version}\n"
    (about / "METADATA").write_text(text)
    (about / "entry_points.txt").write_text(distribution.read_text("entry_points.txt") or "")


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
    shutil.copy2(program, python / "bin" / "python3")


def _copy_libraries(library: Path) -> None:
    """Copy what the programs and modules in `library` are linked with, until nothing is missing."""
    files = [path for path in library.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    for name, path in _resolved(files):
        wanted = "ld.so" if name.startswith("ld-") else name
        if not path.is_relative_to(library) and not (library / wanted).exists():
            shutil.copy2(os.path.realpath(path), library / wanted)
    # The loader is itself wanted by that name by some libraries.
    if not (library / "ld.so").exists():
        raise SystemExit(f"ldd named no loader for {files[0]}: is it linked statically?")


def _strip(library: Path) -> None:
    """Without what only debuggers read the directory is half as large."""
    files = [path for path in library.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    for path in files:
        path.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", *map(str, files)], check=True)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == _ELF


def _resolved(files: list[Path]) -> Iterator[tuple[str, Path]]:
    """Each library by the name under which it is wanted, all that they need in turn among them."""
    listed = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found$", listed, re.MULTILINE)))
    if missing:
        raise SystemExit(f"libraries that the interpreter needs are not here: {', '.join(missing)}")
    for wanted, path in _RESOLVED.findall(listed):
        yield wanted or Path(path).name, Path(path)


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute(), set(sys.argv[2:]))
