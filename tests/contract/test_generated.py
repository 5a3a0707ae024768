"""Generated files in the repository match their sources."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from ringtrain_client.local.manifest import read_merged_jobs
from ringtrain_client.local.templates import LocalTemplates
from ringtrain_operator.generate.crd import build_crd, build_template_crds
from ringtrain_operator.generate.reference import reference_page
from ringtrain_operator.spec.parse import parse_job

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


def test_the_crd_is_up_to_date() -> None:
    """manifests/crd.yaml and crd-templates.yaml are what `make generate` writes."""
    assert yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()) == build_crd()
    of_templates = yaml.safe_load_all((ROOT / "manifests/crd-templates.yaml").read_text())
    assert list(of_templates) == build_template_crds()


def test_the_crds_are_small() -> None:
    """Well under 100 KB, so that client-side apply's annotation (256 KB) never gets in the way."""
    for name in ("crd.yaml", "crd-templates.yaml"):
        assert (ROOT / "manifests" / name).stat().st_size < 100_000


def test_the_reference_is_up_to_date() -> None:
    """docs/reference/api.md is what `make generate` writes."""
    assert (ROOT / "docs/reference/api.md").read_text() == reference_page()


def test_the_reference_page_has_no_internal_fields() -> None:
    """Users read of the status what is theirs: the ledger is the operator's own."""
    page = reference_page()
    assert "## `status.failure`" in page
    assert [line for line in page.splitlines() if "`status.ledger" in line or line.startswith("| `ledger`")] == []


def test_the_contract_is_up_to_date(tmp_path: Path) -> None:
    """Both contract modules and the page's tables are what `make generate` writes from proto/contract.toml."""
    copies = {"launcher_words.py": "cli/launchers.py", "metrics_rule.py": "logs/metrics_rule.py"}
    specs = [f"operator/ringtrain_operator/spec/{name}" for name in copies]
    operator = ["operator/ringtrain_operator/contract.py", *specs]
    files = [*operator, "worker_image/ringtrain/shared/contract.py", "docs/contract.md"]
    for name in [*files, "proto/contract.toml", *(f"worker_image/ringtrain_job/{one}" for one in copies.values())]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, ROOT / "proto/generate_contract.py", tmp_path], check=True)
    assert [name for name in files if (tmp_path / name).read_text() != (ROOT / name).read_text()] == []


def test_every_variable_is_in_the_contract() -> None:
    """A RINGTRAIN_ variable that product code names is in proto/contract.toml, and so on the page."""
    known = set(re.findall(r'"(RINGTRAIN_[A-Z_]+)"', (ROOT / "proto/contract.toml").read_text()))
    folders = ("worker_image/ringtrain*", "plugins/*/ringtrain_*", "operator/ringtrain_operator", "client/ringtrain_*")
    sources = [source for folder in folders for source in ROOT.glob(f"{folder}/**/*.py")]
    named = {name for source in sources for name in re.findall(r'"(RINGTRAIN_[A-Z_]*[A-Z])"', source.read_text())}
    assert named - known - {"RINGTRAIN_OPERATOR"} == set()  # the prefix of the operator's own options


def test_the_samples_are_valid() -> None:
    """Every DistributedTrainingJob among the samples is accepted, with the template that its file has."""
    files = [sample for sample in SAMPLES if "DistributedTrainingJob" in sample.read_text()]
    jobs = [parse_job(obj).name for sample in files for obj in read_merged_jobs(sample, LocalTemplates())[1]]
    assert {"digits", "digits-gpu", "digits-pvc", "digits-s3"} <= set(jobs)
