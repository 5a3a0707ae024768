"""Files that the images contain, and files that they must not contain."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.image_names import name_of, targets
from support.images import USER, Engine

PROBE = (Path(__file__).parent / "probe.py").read_text()
# MB on disk with Debian trixie, amd64. A build that passes these has got something that it did not have.
LARGEST_MB = {
    "operator": 230,
    "agent": 75,
    "worker": 320,
    "worker-torch": 7000,
    "worker-tensorflow": 2500,
    "worker-jax": 1000,
}

Json = dict[str, Any]


@pytest.fixture(scope="module", params=targets())
def target(request: pytest.FixtureRequest) -> str:
    """One image after the other."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def contents(engine: Engine, target: str) -> Json:
    """Run the probe in the image and return its findings on the file system."""
    python = "/python/bin/python3" if target == "agent" else "python3"
    done = engine.run(name_of(target), f"--entrypoint={python}", argv=["-"], stdin=PROBE, user="0:0")
    assert done.returncode == 0, done.stdout
    found: Json = json.loads(done.stdout)
    return found


def test_the_image_says_what_it_is(engine: Engine, target: str) -> None:
    """Its user is a number (what runAsNonRoot asks for), its labels name it, its version and its license."""
    config = engine.inspect(name_of(target))["Config"]
    assert config["User"] == USER
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == f"ringtrain-{target}"
    assert labels["org.opencontainers.image.version"] == name_of(target).rsplit(":", 1)[1]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_nothing_of_the_build_stays(contents: Json) -> None:
    """No compiler, no pip, no ssh server, no caches, no package lists."""
    assert contents["unwanted"] == []
    assert contents["caches"] == []
    assert contents["lists"] == []


def test_no_file_gives_rights_away(contents: Json) -> None:
    """No setuid or setgid file, nothing that everybody may write; all but two folders is root's."""
    assert contents["givesRightsAway"] == []
    assert contents["worldWritable"] == []
    assert set(contents["owned"]) <= {"/var/log/ringtrain", "/checkpoints"}


def test_python_need_not_compile(contents: Json) -> None:
    """Every module under /opt has its bytecode, which a read-only root would not keep."""
    assert contents["uncompiled"] == []


def test_the_image_is_no_larger_than_it_was(engine: Engine, target: str) -> None:
    """Its size is below the bound that is said above."""
    size_mb = engine.inspect(name_of(target))["Size"] / 1e6
    print(f"{target}: {size_mb:.0f} MB")
    assert size_mb < LARGEST_MB[target]


def test_the_agent_has_few_files(contents: Json, target: str) -> None:
    """A container that copies the agent needs time for each file."""
    assert target != "agent" or contents["files"] < 500
