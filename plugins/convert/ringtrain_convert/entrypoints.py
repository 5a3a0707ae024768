"""Programs that images start by themselves, for containers without a command.

They are read from the image's registry by the protocol of the OCI's distribution-spec, without a login.
"""

import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ringtrain_operator.errors import OperatorError

Json = dict[str, Any]
_DOCKER_HUB = "registry-1.docker.io"
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# Registries without TLS, and services of tokens.
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?\Z")
_REALM = re.compile(r"https://|http://(localhost|127\.0\.0\.1)[:/]")
_TIMEOUT_S = 10
# A registry accepts no larger manifest, and configurations of images are smaller.
_MAX_BYTES = 4 << 20


class Program(NamedTuple):
    """ENTRYPOINT and CMD of an image."""

    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...] = ()


@dataclass
class Entrypoints:
    """Programs of images: those in `given`, and with `registry` those that registries have."""

    given: dict[str, Program] = field(default_factory=dict)
    registry: bool = False

    def of(self, image: str) -> Program | None:
        """Return an image's program; None if it is not known. Raises OperatorError if its registry does not have it."""
        if image not in self.given and self.registry:
            self.given[image] = _program_in_registry(image)
        return self.given.get(image)


def read_entrypoint(text: str) -> tuple[str, Program]:
    """Parse IMAGE=COMMAND. Raises ValueError if the text has another form."""
    image, _, command = text.partition("=")
    words = shlex.split(command)
    if not image or not words:
        raise ValueError(f"is {text!r}, expected IMAGE=COMMAND")
    return image, Program(tuple(words))


def with_programs(value: Any, programs: Mapping[str, Program]) -> Any:
    """Return a copy of a manifest in which containers without a command have the programs of their images.

    As in Kubernetes, the container's arguments replace the image's CMD.
    """
    if isinstance(value, list):
        return [with_programs(inner, programs) for inner in value]
    if not isinstance(value, Mapping):
        return value
    made = {key: with_programs(inner, programs) for key, inner in value.items()}
    image = made.get("image")
    program = programs.get(image) if isinstance(image, str) else None
    if program is not None and not made.get("command"):
        made["command"] = list(program.entrypoint)
        made["args"] = made.get("args") or list(program.arguments)
    return made


def images_with_arguments(value: Any) -> Iterator[str]:
    """Yield the images of containers in a manifest that have arguments and no command."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for one in inner:
        yield from images_with_arguments(one)
    if isinstance(value, Mapping) and isinstance(value.get("image"), str) and value.get("args"):
        yield from () if value.get("command") else (value["image"],)


def _program_in_registry(image: str) -> Program:
    try:
        registry, reference = _registry_of(image)
        manifest = registry.get(f"manifests/{reference}")
        if platforms := manifest.get("manifests"):
            manifest = registry.get(f"manifests/{_digest_for_linux(platforms)}")
        found = registry.get(f"blobs/{manifest['config']['digest']}").get("config") or {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise OperatorError(f"the entrypoint of image {image} cannot be read from its registry: {exc}") from exc
    program = Program(tuple(found.get("Entrypoint") or ()), tuple(found.get("Cmd") or ()))
    if not any(program):
        raise OperatorError(f"the image {image} has neither ENTRYPOINT nor CMD: write the command")
    return program


def _digest_for_linux(platforms: Sequence[Mapping[str, Any]]) -> str:
    """Return the digest of the image for linux/amd64, or of the first image."""
    wanted = {"os": "linux", "architecture": "amd64"}.items()
    found = (one for one in platforms if wanted <= (one.get("platform") or {}).items())
    return str(next(found, platforms[0])["digest"])


@dataclass
class _Registry:
    """Repository in a registry. `token`: value of the header Authorization."""

    host: str
    repository: str
    token: str = ""

    def get(self, path: str) -> Json:
        """Return the JSON object at `path` of the repository."""
        local = _LOCAL.match(self.host)
        request = urllib.request.Request(
            f"http{'' if local else 's'}://{self.host}/v2/{self.repository}/{path}",
            headers={"Accept": ", ".join(_MANIFESTS)},
        )
        if self.token:  # not for the storage to which a registry may redirect
            request.add_unredirected_header("Authorization", self.token)
        try:
            return _json_at(request)
        except urllib.error.HTTPError as exc:
            asked = dict(re.findall(r'(\w+)="([^"]*)"', exc.headers.get("WWW-Authenticate", "")))
            if exc.code != 401 or self.token or not _REALM.match(asked.get("realm", "")):
                raise
        query = urlencode({key: value for key, value in asked.items() if key in ("service", "scope")})
        answer = _json_at(urllib.request.Request(f"{asked['realm']}?{query}"))
        self.token = f"Bearer {answer.get('token') or answer['access_token']}"
        return self.get(path)


def _json_at(request: urllib.request.Request) -> Json:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return dict(json.loads(answer.read(_MAX_BYTES)))


def _registry_of(image: str) -> tuple[_Registry, str]:
    """Return the repository of an image, and its tag or digest, by Docker's rules for names."""
    name, at, reference = image.partition("@")
    tag = re.search(r":([\w.-]+)\Z", name)
    if tag:
        name = name[: tag.start()]
    host, slash, repository = name.partition("/")
    if not slash or not (re.search(r"[.:]", host) or host == "localhost"):
        host, repository = _DOCKER_HUB, name if slash else f"library/{name}"
    elif host in ("docker.io", "index.docker.io"):
        host, repository = _DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
    return _Registry(host, repository), reference if at else tag[1] if tag else "latest"
