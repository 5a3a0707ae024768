"""Check the pages: links lead somewhere, files, folders and modules that pages name exist, lines are not too long.

python docs/check.py            # part of `make lint`
python docs/check.py --wrap     # break lines that are too long
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "ringtrain": "worker_image",
    "ringtrain_job": "worker_image",
    "ringtrain_operator": "operator",
    "ringtrain_client": "client",
    "ringtrain_sdk": "client",
} | {f"ringtrain_{plugin.parent.name}": f"plugins/{plugin.parent.name}" for plugin in ROOT.glob("plugins/*/tests")}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|c|h|svg|sh|proto)|(?:[\w-]+/)+")
NAME = re.compile(rf"(?:{'|'.join(DISTRIBUTIONS)})(?:\.\w+)+")
WIDTH = 120
# Lines that are a paragraph's, or an item's of a list, can be broken; tables, headings and what has a mark can't.
UNBROKEN = re.compile(r"\s*(\||#|```|<!--|:::|>|---)")
ITEM = re.compile(r"\s*([*+-]|\d+\.)\s+")
# Stands for a space that is no place to break: in code, and before what would begin a list, a heading or the like.
GLUE = "\0"
# What pages name of other places: users' own files, other projects', pods' file systems.
ELSEWHERE = {"train.py", "broken.py", "differ.py", "runs/", "build/manifests/", "crds/", "linux/", "discover_hosts.sh"}


def pages() -> list[Path]:
    """Those in the repository's root, everything below docs/ and bench/, and the plugins' own."""
    front = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return sorted(
        [*front, *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md"), *ROOT.glob("plugins/*/*.md")]
    )


def problems(page: Path) -> Iterator[str]:
    """Yield the errors of a page, one line each."""
    text = page.read_text()
    if wrapped(text) != text:
        yield f"has lines of more than {WIDTH} characters: python docs/check.py --wrap"
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not leads_somewhere(page, target):
            yield f"link to {target}, which is not there"
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        if "NAME" in code:  # stands for any
            continue
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
    parts = in_plugin(dotted).split(".")
    file, rest = ROOT / DISTRIBUTIONS[parts[0]] / parts[0], parts[1:]
    while rest and (file / rest[0] / "__init__.py").exists():
        file, rest = file / rest[0], rest[1:]
    module = file / f"{rest[0]}.py" if rest else file / "__init__.py"
    source = module if rest and module.exists() else file / "__init__.py"
    members = rest[1:] if source is module else rest
    text = source.read_text()
    for star in re.findall(r"^\s*from ([\w.]+) import \*", text, re.MULTILINE):
        folder = ROOT / DISTRIBUTIONS[star.partition(".")[0]] / star.replace(".", "/")
        text += (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text()
    return all(re.search(rf"\b{name}\b", text) for name in members[:1])


def in_plugin(dotted: str) -> str:
    """The name in a plugin's package if `dotted` is another name for it, else `dotted`."""
    parts = dotted.split(".")
    for count in range(2, len(parts) + 1 if parts[0] in DISTRIBUTIONS else 0):
        place = ROOT / DISTRIBUTIONS[parts[0]] / "/".join(parts[:count])
        source = place / "__init__.py"
        source = source if source.exists() else place.with_suffix(".py")
        text = source.read_text() if source.exists() else ""
        found = re.search(r'^provide\(__name__, "([\w.]+)"\)$', text, re.MULTILINE)
        found = found or re.search(r"^from (ringtrain_[\w.]+) import \*", text, re.MULTILINE)
        if found and found[1].partition(".")[0] != parts[0]:
            return in_plugin(".".join([found[1], *parts[count:]]))
    return dotted


def wrapped(text: str) -> str:
    """The page with its long lines broken: from each on, its paragraph or item is filled anew."""
    lines, kept, is_code = text.split("\n"), [], False
    while lines:
        line = lines.pop(0)
        is_code ^= line.lstrip().startswith("```")
        if is_code or len(line) <= WIDTH or UNBROKEN.match(line):
            kept.append(line)
            continue
        rest = []
        while lines and lines[0].strip() and not UNBROKEN.match(lines[0]) and not ITEM.match(lines[0]):
            rest.append(lines.pop(0))
        kept += filled(line, rest)
    return "\n".join(kept)


def filled(line: str, rest: list[str]) -> list[str]:
    """A line and those that go on from it, as lines of at most WIDTH characters where words allow that."""
    mark = ITEM.match(line)
    indent = re.match(r"\s*", line)
    follows = re.match(r"\s*", rest[0]) if rest else None
    assert indent is not None
    first = (mark or indent)[0]
    later = follows[0] if follows else " " * len(first)
    words = " ".join([line[len(first) :], *(each.strip() for each in rest)])
    words = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", GLUE), words)
    words = re.sub(r" (?=([*+-]|\d+[.)]) |[#>|]|```|:::)", GLUE, words)
    made = textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [each.replace(GLUE, " ") for each in made]


def main() -> None:
    """Print every problem, and exit with 1 if there is one; with --wrap, break long lines and no more."""
    if sys.argv[1:] == ["--wrap"]:
        for page in pages():
            page.write_text(wrapped(page.read_text()))
        return
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in problems(page)]
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
