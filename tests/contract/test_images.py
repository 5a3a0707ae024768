"""Images, chart, samples and distributions name one another's versions and targets."""

import re
import tomllib

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
