"""What `make docs` changes: README is the first page, and links out of docs/ become their text."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Put README in front, with its links as a page of docs/ has them."""
    text = (ROOT / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files that are no page here (sources, manifests, bench) become their text."""
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path = (folder / target.partition("#")[0]).resolve()
        is_page = path.is_file() and path.is_relative_to(config.docs_dir)
        if "://" in target or target.startswith("#") or is_page:
            return match.group(0)
        return f"{mark}{text}"

    return LINK.sub(inside, markdown)
