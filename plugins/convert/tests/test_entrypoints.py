"""Entrypoints of images for jobs without a command, from the command line and from a registry on this machine."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ringtrain_client.cli.main import main
from ringtrain_convert.entrypoints import _registry_of
from ringtrain_convert.torchrun import hosts_of_ranks

CONFIGS: dict[str, Any] = {
    "sha256:amd": {"config": {"Entrypoint": ["python", "/a b.py"], "Cmd": ["--epochs", "3"]}},
    "sha256:arm": {"config": {"Entrypoint": ["false"]}},
    "sha256:bare": {"config": {"Cmd": ["./run"]}},
    "sha256:empty": {"config": {}},
}
MANIFESTS: dict[str, Any] = {
    "v1": {
        "manifests": [
            {"digest": "sha256:m-arm", "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": "sha256:m-amd", "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    },
    "sha256:m-arm": {"config": {"digest": "sha256:arm"}},
    "sha256:m-amd": {"config": {"digest": "sha256:amd"}},
    "bare": {"config": {"digest": "sha256:bare"}},
    "latest": {"config": {"digest": "sha256:empty"}},
    "old": {"schemaVersion": 1},
}


class Registry(BaseHTTPRequestHandler):
    """Registry with one repository, which wants an anonymous token and redirects blobs to a storage without tokens."""

    def do_GET(self) -> None:
        """Answer as the distribution-spec and Docker's token protocol say."""
        path, _, query = self.path.partition("?")
        host = self.headers["Host"]
        *_, kind, name = path.split("/")
        if path == "/token":
            assert query == "service=registry&scope=repository%3Ateam%2Ftrain%3Apull"
            self.answer(200, {"token": "t"})
        elif kind == "storage":
            self.answer(400 if "Authorization" in self.headers else 200, CONFIGS[name])
        elif self.headers.get("Authorization") != "Bearer t":
            scope = "repository:team/train:pull"
            challenge = f'Bearer realm="http://{host}/token",service="registry",scope="{scope}"'
            self.answer(401, {}, {"WWW-Authenticate": challenge})
        elif kind == "blobs":
            self.answer(307, {}, {"Location": f"http://{host}/storage/{name}"})
        else:
            assert "oci.image.index" in self.headers["Accept"]
            self.answer(200 if name in MANIFESTS else 404, MANIFESTS.get(name, {}))

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """Send a JSON answer."""
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def repository() -> Iterator[str]:
    """Name of the repository in a registry on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/team/train"
        server.shutdown()


def convert(image: str, *options: str, **fields: object) -> Result:
    """Convert a JAXJob whose container has this image and no command."""
    container = {"name": "jax", "image": image, **fields}
    replicas = {"Worker": {"template": {"spec": {"containers": [container]}}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob", "metadata": {"name": "a"}}
    text = yaml.safe_dump({**job, "spec": {"jaxReplicaSpecs": replicas}})
    return CliRunner().invoke(main, ["convert", "-", *options], input=text)


def command_in(result: Result) -> list[str]:
    """Return the command of a converted JAXJob without the shell in front of it."""
    [container] = yaml.safe_load(result.stdout)["spec"]["worker"]["template"]["spec"]["containers"]
    return list(container["command"][4:])


def test_a_registry_has_the_program(repository: str) -> None:
    """Arguments of the container replace CMD, and a tag is latest by default."""
    result = convert(f"{repository}:v1", "--registry")
    assert command_in(result) == ["python", "/a b.py", "--epochs", "3"]
    assert f"a: the program of image {repository}:v1 becomes the command: python '/a b.py'\n" in result.stderr
    assert command_in(convert(f"{repository}:v1", "--registry", args=["-x"])) == ["python", "/a b.py", "-x"]
    assert command_in(convert(f"{repository}:bare", "--registry")) == ["./run"]
    assert "has neither ENTRYPOINT nor CMD" in convert(repository, "--registry").stderr


@pytest.mark.parametrize(("tag", "why"), [("none", "HTTP Error 404"), ("old", "'config'")])
def test_a_program_that_cannot_be_read_is_a_refusal(repository: str, tag: str, why: str) -> None:
    """The line names the image."""
    result = convert(f"{repository}:{tag}", "--registry")
    assert result.exit_code == 1
    assert f"the entrypoint of image {repository}:{tag} cannot be read from its registry: " in result.stderr
    assert why in result.stderr


def test_arguments_without_an_option(repository: str) -> None:
    """The image decides whether the first argument is a program. Otherwise a note says so."""
    assert command_in(convert(f"{repository}:v1", "--registry", args=["a.py"])) == ["python", "/a b.py", "a.py"]
    for options in ([], ["--registry"]):
        result = convert(f"{repository}:none", *options, args=["a.py"])
        assert command_in(result) == ["a.py"]
        assert "args become the command: if the image has an entrypoint" in result.stderr


def test_the_command_line_has_the_program() -> None:
    """Without an option no registry is asked."""
    assert "the entrypoint of image i cannot be seen from here: write it out, or pass --registry" in convert("i").stderr
    assert command_in(convert("i:1", "--entrypoint", "i:1=python 'a b.py'", args=["-x"])) == ["python", "a b.py", "-x"]
    assert "expected IMAGE=COMMAND" in convert("i", "--entrypoint", "python").stderr


def test_a_trainjob_has_its_runtimes_image() -> None:
    """Arguments of the TrainJob belong to the program of the runtime's image."""
    image = "nvcr.io/nvidia/jax:25.10-py3"
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "a"},
        "spec": {"runtimeRef": {"name": "jax-distributed"}, "trainer": {"args": ["-x"]}},
    }
    options = ["--kubeconfig", "/nonexistent", "--entrypoint", f"{image}=python a.py"]
    result = CliRunner().invoke(main, ["convert", "-", *options], input=yaml.safe_dump(job))
    assert command_in(result) == ["python", "a.py", "-x"], result.stderr


@pytest.mark.parametrize(
    ("image", "host", "repository", "reference"),
    [
        ("mnist", "registry-1.docker.io", "library/mnist", "latest"),
        ("team/mnist:2", "registry-1.docker.io", "team/mnist", "2"),
        ("docker.io/mnist:2", "registry-1.docker.io", "library/mnist", "2"),
        ("ghcr.io/a/b/c@sha256:0f", "ghcr.io", "a/b/c", "sha256:0f"),
        ("localhost:5000/a:b.1", "localhost:5000", "a", "b.1"),
        ("gcr.io:443/a:1@sha256:0f", "gcr.io:443", "a", "sha256:0f"),
    ],
)
def test_names_of_images(image: str, host: str, repository: str, reference: str) -> None:
    """Docker's rules: a host has a dot or a port, or is localhost."""
    registry, found = _registry_of(image)
    assert (registry.host, registry.repository, found) == (host, repository, reference)


@pytest.mark.parametrize(
    ("addresses", "fields", "hosts"),
    [("a:1", "2-", ""), ("a:1,b.c:22,d:3", "2-", "b.c,d"), ("a:1,b:22,d:3", "1-2", "a,b"), ("a:1", "1-1", "a")],
)
def test_hosts_of_ranks(addresses: str, fields: str, hosts: str) -> None:
    """A shell removes the ports."""
    script = f'HOSTS="{hosts_of_ranks(fields)}"; echo "$HOSTS"'
    env = {"RINGTRAIN_RING_ADDRESSES": addresses, "PATH": "/usr/bin:/bin"}
    assert subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True).stdout == f"{hosts}\n"
