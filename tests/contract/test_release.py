"""A release has one version."""

import hashlib
import re
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from support.commands import completed, module_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """Return the module that `make release-check` runs."""
    return module_at(ROOT / "charts/release_check.py")


def test_all_that_is_published_has_one_version(check: ModuleType) -> None:
    """The distributions, the chart, and the images that the chart names."""
    found = check.versions(ROOT)
    assert {
        "operator/pyproject.toml",
        "worker_image/pyproject.toml",
        "client/pyproject.toml",
        "plugins/torch/pyproject.toml",
    } <= set(found)
    assert check.problem(found, "main") == ""


PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_depends_on_its_release_and_has_an_extra(plugin: str) -> None:
    """The words `pip install 'ringtrain[PLUGIN]'` of messages install it, and all are of one version."""
    project = tomllib.loads((ROOT / "plugins" / plugin / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    assert name == f"ringtrain-{plugin.replace('_', '-')}"
    depends = [one for one in project["dependencies"] if one.startswith("ringtrain")]
    if depends == [f"ringtrain-client=={version}"]:  # a plugin of dtj
        return
    assert depends == [f"ringtrain=={version}"]
    extras = tomllib.loads((ROOT / "worker_image/pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"{name}=={version}" in extras[name.removeprefix("ringtrain-")]


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


def test_krew_installs_what_is_packed(tmp_path: Path) -> None:
    """The manifest has krew's fields, and leads to an archive with its checksum, whose program runs."""
    plugin = module_at(ROOT / "charts/plugin.py")
    program = tmp_path / "built"
    program.write_text("#!/bin/sh\necho this is $0\n")
    archive = plugin.pack(program, tmp_path / "dist")
    made = yaml.safe_load(plugin.manifest(tmp_path / "dist", "1.2.3"))
    assert (made["apiVersion"], made["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    spec = made["spec"]
    assert (made["metadata"]["name"], spec["version"]) == ("dtj", "v1.2.3")
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "\n" not in spec["shortDescription"]
    [chosen] = spec["platforms"]
    assert "-".join(chosen["selector"]["matchLabels"][key] for key in ("os", "arch")) == plugin.this_platform()
    assert chosen["uri"] == archive.as_uri()
    assert chosen["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as unpacked:
        assert {Path(name).parent for name in unpacked.getnames()} == {Path()}
        unpacked.extractall(tmp_path / "store", filter="data")
    # krew calls the program by the plugin's name through a link to it.
    link = tmp_path / f"kubectl-{made['metadata']['name']}"
    link.symlink_to(tmp_path / "store" / chosen["bin"])
    assert completed([link], check=True).stdout == f"this is {link}\n"


def test_a_manifest_of_nothing_is_none(tmp_path: Path) -> None:
    """A manifest without archives is an error that lists the expected archives."""
    with pytest.raises(SystemExit, match=r"kubectl-dtj-linux-amd64\.tar\.gz, kubectl-dtj-linux-arm64"):
        module_at(ROOT / "charts/plugin.py").manifest(tmp_path, "1.2.3")


def test_krew_is_told_of_every_archive_that_a_release_makes() -> None:
    """Each platform of the workflow has its place in the manifest, and no other."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    made = {entry["platform"] for entry in workflow["jobs"]["plugin"]["strategy"]["matrix"]["include"]}
    manifest = (ROOT / ".krew.yaml").read_text()
    chosen = {f"{os}-{arch}" for os, arch in re.findall(r"os: (\w+), arch: (\w+)", manifest)}
    assert made == chosen == set(re.findall(r"/kubectl-dtj-([a-z0-9-]+)\.tar\.gz", manifest))
