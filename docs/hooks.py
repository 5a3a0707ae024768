"""Add README and CONTRIBUTING to the pages of docs/, and turn links to other files outside of docs/ into their text."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FRONT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages of the repository's root, with links relative to docs/."""
    for source, page in FRONT.items():
        text = (ROOT / source).read_text().replace("](docs/", "](").replace("](CONTRIBUTING.md", "](contributing.md")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn links to files that are not a page (sources, manifests, bench) into their text."""
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        name, hash_sign, part = target.partition("#")
        path = (folder / name).resolve()
        if path.parent == ROOT and path.name in FRONT:
            front = posixpath.relpath(FRONT[path.name], posixpath.dirname(page.file.src_uri) or ".")
            return f"{mark}[{text}]({front}{hash_sign}{part})"
        is_page = name in FRONT.values() or (path.is_file() and path.is_relative_to(config.docs_dir))
        if "://" in target or target.startswith("#") or is_page:
            return match.group(0)
        return f"{mark}{text}"

    return LINK.sub(inside, markdown)
