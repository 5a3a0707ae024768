"""What is generated from the models is what the repository holds."""

from __future__ import annotations

from pathlib import Path

import yaml

from ringtrain_operator.generate.crd import build_crd
from ringtrain_operator.generate.reference import reference_page
from ringtrain_operator.spec import parse_job

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


def test_the_crd_is_up_to_date() -> None:
    """manifests/crd.yaml is what `make generate` writes."""
    assert yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()) == build_crd()


def test_the_crd_is_small() -> None:
    """Well under 100 KB, so that client-side apply's annotation (256 KB) never gets in the way."""
    assert (ROOT / "manifests/crd.yaml").stat().st_size < 100_000


def test_the_reference_is_up_to_date() -> None:
    """docs/reference/api.md is what `make generate` writes."""
    assert (ROOT / "docs/reference/api.md").read_text() == reference_page()


def test_the_samples_are_valid() -> None:
    """Every DistributedTrainingJob among the samples is accepted."""
    objects = [obj for sample in SAMPLES for obj in yaml.safe_load_all(sample.read_text())]
    jobs = [parse_job(obj).name for obj in objects if obj["kind"] == "DistributedTrainingJob"]
    assert {"digits", "digits-gpu", "digits-pvc"} <= set(jobs)
