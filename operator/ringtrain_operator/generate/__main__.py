"""`python -m ringtrain_operator.generate ROOT`: write what is generated from the models into a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from .crd import build_crd
from .reference import reference_page

_HEADER = "# Generated from the models by `make generate`; do not edit.\n"


def main(root: Path) -> None:
    """Write manifests/crd.yaml and docs/reference/api.md under `root`."""
    manifest = _HEADER + yaml.safe_dump(build_crd(), sort_keys=False, width=110, allow_unicode=True)
    for path, text in (("manifests/crd.yaml", manifest), ("docs/reference/api.md", reference_page())):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
