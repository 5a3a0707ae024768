"""`python -m ringtrain_operator.generate ROOT`: write all files generated from the models into a checkout."""

import sys
from pathlib import Path
from typing import Any

import yaml

from .crd import build_crd, build_template_crds
from .reference import reference_page

_HEADER = "# Generated from the models by `make generate`; do not edit.\n"


def main(root: Path) -> None:
    """Write the CRDs in manifests/ and docs/reference/api.md under `root`."""
    written = {
        "manifests/crd.yaml": _manifest(build_crd()),
        "manifests/crd-templates.yaml": _manifest(*build_template_crds()),
        "docs/reference/api.md": reference_page(),
    }
    for path, text in written.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _manifest(*crds: dict[str, Any]) -> str:
    return _HEADER + yaml.safe_dump_all(crds, sort_keys=False, width=110, allow_unicode=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
