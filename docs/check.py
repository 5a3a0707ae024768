"""Check the pages: links lead somewhere, and files, folders and modules that pages name exist.

python docs/check.py       # part of `make lint`
"""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "ringtrain": "worker_image",
    "ringtrain_job": "worker_image",
    "ringtrain_operator": "operator",
    "ringtrain_sdk": "sdk",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|c|h|svg|sh|proto)|(?:[\w-]+/)+")
NAME = re.compile(r"(?:ringtrain|ringtrain_job|ringtrain_operator|ringtrain_sdk)(?:\.\w+)+")
# What pages name of other places: users' own files, other projects', pods' file systems.
ELSEWHERE = {"train.py", "broken.py", "differ.py", "runs/", "crds/", "linux/", "discover_hosts.sh"}


def pages() -> list[Path]:
    """Those in the repository's root, and everything below docs/ and bench/."""
    front = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return sorted([*front, *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])


def problems(page: Path) -> Iterator[str]:
    """What is wrong on a page, one line each."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not leads_somewhere(page, target):
            yield f"link to {target}, which is not there"
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        if PATH.fullmatch(code) and not exists(code):
            yield f"`{code}` names no file or folder of this repository"
        if NAME.fullmatch(code) and not is_a_name(code):
            yield f"`{code}` names no module or member of one"
    for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        if not is_a_name(name):
            yield f"::: {name} names no module or member of one"


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link is to another site, or to a file of the repository and a heading that this file has."""
    if "://" in target:
        return True
    path, _, fragment = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or not fragment:
        return file.exists()
    return fragment in {anchor(heading) for heading in re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)}


def anchor(heading: str) -> str:
    """The fragment under which a heading can be reached."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def exists(code: str) -> bool:
    """Whether `code` is the end of a path in the repository."""
    return code in ELSEWHERE or code.rstrip("/") in endings()


@cache
def endings() -> frozenset[str]:
    """Every end of every path: of a/b/c.py `a/b/c.py`, `b/c.py` and `c.py`."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        kept = [name for name in folders if name[0] != "." and name not in {"runs", "site"}]
        folders[:] = [name for name in kept if not (Path(folder) / name / "pyvenv.cfg").exists()]
        for name in (*files, *folders):
            parts = (Path(folder) / name).relative_to(ROOT).parts
            found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return frozenset(found)


def is_a_name(dotted: str) -> bool:
    """Whether a dotted name is a module, or a module's member as its file has the words."""
    parts = dotted.split(".")
    file, rest = ROOT / DISTRIBUTIONS[parts[0]] / parts[0], parts[1:]
    while rest and (file / rest[0]).is_dir():
        file, rest = file / rest[0], rest[1:]
    module = file / f"{rest[0]}.py" if rest else file / "__init__.py"
    source = module if rest and module.exists() else file / "__init__.py"
    members = rest[1:] if source is module else rest
    text = source.read_text()
    for star in re.findall(r"^\s*from ([\w.]+) import \*", text, re.MULTILINE):
        folder = ROOT / DISTRIBUTIONS[parts[0]] / star.replace(".", "/")
        text += (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text()
    return all(re.search(rf"\b{name}\b", text) for name in members[:1])


def main() -> None:
    """Print every problem, and exit with 1 if there is one."""
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in problems(page)]
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
