"""A release has one version."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """What `make release-check` runs."""
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "charts" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_that_is_published_has_one_version(check: ModuleType) -> None:
    """The distributions, the chart, and the images that the chart names."""
    found = check.versions(ROOT)
    assert {"operator/pyproject.toml", "worker_image/pyproject.toml", "sdk/pyproject.toml"} <= set(found)
    assert check.problem(found, "main") == ""


@pytest.mark.parametrize(
    ("second", "ref", "says"),
    [
        pytest.param("1.0", "v1.0", "", id="the-tag-fits"),
        pytest.param("1.0", "v1.1", "the tag is v1.1", id="another-tag"),
        pytest.param("1.1", "main", "these differ: a: 1.0, b: 1.1", id="two-versions"),
    ],
)
def test_what_does_not_fit_is_named(check: ModuleType, second: str, ref: str, says: str) -> None:
    """Before anything is built."""
    found = check.problem({"a": "1.0", "b": second}, ref)
    assert says in found
    assert bool(says) is bool(found)


def test_krew_is_told_of_every_archive_that_a_release_makes() -> None:
    """Each platform of the workflow has its place in the manifest, and no other."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    made = {entry["platform"] for entry in workflow["jobs"]["plugin"]["strategy"]["matrix"]["include"]}
    manifest = (ROOT / ".krew.yaml").read_text()
    chosen = {f"{os}-{arch}" for os, arch in re.findall(r"os: (\w+), arch: (\w+)", manifest)}
    assert made == chosen == set(re.findall(r"/kubectl-dtj-([a-z0-9-]+)\.tar\.gz", manifest))
