"""Entrypoints of images for jobs without a command, from the command line and from a registry on this machine."""

import hashlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from support.gang import until
from support.ports import free_addresses

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
    """Name of the repository in a registry on this machine that wants tokens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/team/train"
        server.shutdown()


@pytest.fixture(scope="module")
def real_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a repository with the same images in Docker's own registry, which wants no tokens."""
    if (program := shutil.which("docker-registry")) is None:
        pytest.skip("needs docker-registry")
    folder, address = tmp_path_factory.mktemp("registry"), free_addresses(1)[0]
    settings = {"version": 0.1, "storage": {"filesystem": {"rootdirectory": str(folder)}}, "http": {"addr": address}}
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    with subprocess.Popen([program, "serve", folder / "config.yml"], stderr=subprocess.DEVNULL) as server:
        try:
            until("the registry", lambda: _is_open(address))
            push_images(f"http://{address}/v2/team/train")
            yield f"{address}/team/train"
        finally:
            server.kill()


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def push_images(repository: str) -> None:
    """Push the images of `CONFIGS` and `MANIFESTS`, with the digests of their content, to the repository at this
    address."""
    kind = "application/vnd.docker.distribution.manifest"
    pushed: dict[str, tuple[str, int]] = {}  # digest and size by the digest in MANIFESTS
    for name, config in CONFIGS.items():
        content = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers"}, **config}).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        begun = _request(f"{repository}/blobs/uploads/", "POST", b"", "")
        location = str(begun["Location"])
        _request(f"{location}&digest={digest}", "PUT", content, "application/octet-stream")
        pushed[name] = digest, len(content)
    for name, manifest in sorted(MANIFESTS.items(), key=lambda item: "manifests" in item[1]):
        if "config" in manifest:
            digest, size = pushed[manifest["config"]["digest"]]
            config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest, "size": size}
            body = {"schemaVersion": 2, "mediaType": f"{kind}.v2+json", "config": config, "layers": []}
        elif "manifests" in manifest:
            of = {one["digest"]: one["platform"] for one in manifest["manifests"]}
            entries = [
                {"mediaType": f"{kind}.v2+json", "digest": pushed[at][0], "size": pushed[at][1], "platform": platform}
                for at, platform in of.items()
            ]
            body = {"schemaVersion": 2, "mediaType": f"{kind}.list.v2+json", "manifests": entries}
        else:
            continue  # a manifest of the first version, which this registry refuses
        content = json.dumps(body).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        pushed[name] = digest, len(content)
        at = digest if name.startswith("sha256:") else name
        _request(f"{repository}/manifests/{at}", "PUT", content, str(body["mediaType"]))


def _request(address: str, method: str, content: bytes, kind: str) -> Message:
    """Send a request; return the headers of the answer."""
    request = urllib.request.Request(address, content, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers  # type: ignore[no-any-return]


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


@pytest.mark.parametrize("of", ["repository", "real_repository"])
def test_a_registry_has_the_program(of: str, request: pytest.FixtureRequest) -> None:
    """Arguments of the container replace CMD, and a tag is latest by default."""
    repository = request.getfixturevalue(of)
    result = convert(f"{repository}:v1", "--registry")
    assert command_in(result) == ["python", "/a b.py", "--epochs", "3"]
    assert f"a: the program of image {repository}:v1 becomes the command: python '/a b.py'\n" in result.stderr
    assert command_in(convert(f"{repository}:v1", "--registry", args=["-x"])) == ["python", "/a b.py", "-x"]
    assert command_in(convert(f"{repository}:bare", "--registry")) == ["./run"]
    assert "has neither ENTRYPOINT nor CMD" in convert(repository, "--registry").stderr


@pytest.mark.parametrize(
    ("of", "tag", "why"),
    [
        ("repository", "none", "HTTP Error 404"),
        ("real_repository", "none", "HTTP Error 404"),
        ("repository", "old", "'config'"),
    ],
)
def test_a_program_that_cannot_be_read_is_a_refusal(
    of: str, tag: str, why: str, request: pytest.FixtureRequest
) -> None:
    """The line names the image."""
    repository = request.getfixturevalue(of)
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
    ways = "write it out, or pass --registry or --entrypoint 'i=COMMAND'"
    assert f"the entrypoint of image i cannot be seen from here: {ways}" in convert("i").stderr
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
