"""`python charts/generate.py ROOT`: what is rendered from the chart, its copies of CRDs, dashboards, README."""

import re
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from dashboards import DASHBOARDS, as_json
from values_table import values_table

NAMESPACE = "ringtrain-system"
HEADER = "# Rendered from charts/ringtrain-operator by `make generate`; do not edit.\n"
# The operator's own pods keep to the strictest of the Pod Security Standards.
NAMESPACE_MANIFEST = f"""apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels: {{pod-security.kubernetes.io/enforce: restricted}}
---
"""
KEEP = """  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def chart_crd(crd: str) -> str:
    """CRDs as a template: installed and upgraded with the chart, kept when that goes, as the values say.

    It is text all the way, because Helm's own toYaml writes large integers as floats.
    """
    if "{{" in crd:
        raise ValueError("the CRD holds '{{', which a Helm template would take for its own")
    kept, documents = re.subn(r"^metadata:\n", f"metadata:\n{KEEP}", crd.rstrip(), flags=re.MULTILINE)
    if not documents:
        raise ValueError("the CRD has no metadata")
    return f"{{{{- if .Values.crds.install }}}}\n{kept}\n{{{{- end }}}}\n"


def render(chart: Path, *options: str) -> str:
    """The chart's manifests as Helm renders them, release `ringtrain`."""
    helm = Path(sys.executable).with_name("helm")
    command = [str(helm), "template", "ringtrain", str(chart), f"--namespace={NAMESPACE}", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain(rendered: str) -> str:
    """Manifests for kubectl: without what says that Helm manages the objects, and how."""
    helms = ("app.kubernetes.io/managed-by: Helm", "helm.sh/chart: ", "helm.sh/resource-policy: ")
    lines = [line for line in rendered.splitlines(keepends=True) if not line.strip().startswith(helms)]
    return re.sub(r"( *# Users keep [^\n]*\n)?  annotations:\n(?! {4})", "", "".join(lines))


README = """# ringtrain-operator

Installs Ringtrain's operator, which runs DistributedTrainingJobs: training with MPI or Ringtrain's ring, in PyTorch,
TensorFlow, Keras or JAX. docs/install.md has the steps of an installation.

    helm install ringtrain charts/ringtrain-operator --namespace ringtrain-system --create-namespace

This page is generated from `values.yaml` by `make generate`; do not edit it.

## Values

"""


def main(root: Path) -> None:
    """Write the chart's CRDs, dashboards and README, and manifests/operator.yaml."""
    chart, manifests = root / "charts" / "ringtrain-operator", root / "manifests"
    for name, dashboard in DASHBOARDS.items():
        (chart / "files" / f"dashboard-{name}.json").write_text(as_json(dashboard))
    for name in ("crd.yaml", "crd-templates.yaml"):
        (chart / "templates" / name).write_text(chart_crd((manifests / name).read_text()))
    (chart / "README.md").write_text(README + values_table((chart / "values.yaml").read_text()))
    rendered = render(chart, "--set=crds.install=false")
    (manifests / "operator.yaml").write_text(HEADER + NAMESPACE_MANIFEST + plain(rendered.lstrip("-\n")))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
