"""Images, chart, samples and distributions name one another's versions and targets."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml
from support.image_names import ROOT, name_of, version

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STAGES = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)


def test_samples_and_chart_name_images_that_can_be_built() -> None:
    """Each is a target of the Dockerfile in the chart's version, and `make images` builds each."""
    texts = [path.read_text() for path in (ROOT / "manifests").rglob("*.yaml")]
    named = {image for text in texts for image in re.findall(r"image[:=] ?(ghcr\.io/ringtrain/\S+)", text)}
    made = re.search(r"^IMAGES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named == {name_of(target) for target in made[1].split()}
    assert set(made[1].split()) <= set(STAGES)


def test_versions_are_one() -> None:
    """Both distributions, the chart, and the label of the images."""
    chart = yaml.safe_load((ROOT / "charts/ringtrain-operator/Chart.yaml").read_text())
    folders = ("operator", "client", "worker_image")
    projects = [tomllib.loads((ROOT / one / "pyproject.toml").read_text()) for one in folders]
    versions = {version(), chart["version"], *(project["project"]["version"] for project in projects)}
    assert versions == set(re.findall(r"^ARG VERSION=(\S+)$", DOCKERFILE, re.MULTILINE))


def test_final_stages_run_as_a_number() -> None:
    """The last USER of every image is 65532, which a kubelet can tell from root."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    for stage in stages:
        name = stage.splitlines()[0].split(" AS ")[1]
        if name in ("operator", "worker", "worker-torch", "worker-tensorflow", "worker-jax"):
            assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "65532:65532", name


def test_manifests_and_samples_of_a_registry(tmp_path: Path) -> None:
    """`make manifests` writes all of them, and each image is the registry's."""
    words = ["make", "-s", "manifests", "REGISTRY=registry.example.com:5000/team", f"MANIFESTS_TO={tmp_path / 'to'}"]
    subprocess.run(words, cwd=ROOT, check=True)
    ours = {path.relative_to(ROOT / "manifests"): path.read_text() for path in (ROOT / "manifests").rglob("*.*")}
    made = {path.relative_to(tmp_path / "to"): path.read_text() for path in (tmp_path / "to").rglob("*.*")}
    registry = "registry.example.com:5000/team/ringtrain/"
    assert made == {path: text.replace("ghcr.io/ringtrain/", registry) for path, text in ours.items()}
    assert f"--agent-image={registry}agent" in made[Path("operator.yaml")]


def test_extras_are_in_quotes() -> None:
    """zsh takes brackets for a pattern: every `pip install` with an extra is quoted, on pages and in messages."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    sources = [path for folder in ("worker_image", "client", "operator", "plugins") for path in folder_files(folder)]
    found = [
        (str(path.relative_to(ROOT)), line.strip())
        for path in (*pages, *sources)
        if path.name != "CHANGELOG.md" and "decisions" not in path.parts
        for line in path.read_text().splitlines()
        if re.search(r"pip install [^'\"`#]*\w\[", line)
    ]
    assert found == []


def folder_files(folder: str) -> list[Path]:
    """Python files of distributions, without what was built."""
    return [path for path in (ROOT / folder).rglob("*.py") if not {"build", ".venv"} & set(path.parts)]
