"""dtj and kubectl with the same kubeconfig: the same request to the same server, or both refuse."""

import asyncio
import base64
import json
import os
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.certificates import ClusterAuthority
from support.kubeconfig_cases import CASES, Case
from support.recorded_requests import Record, api_server, http_proxy, socks_proxy

from ringtrain_client.cli.main import main

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_OTHERS = {"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "POD_NAMESPACE"}
UNSET = _OTHERS | {*_PROXIES, *(name.lower() for name in _PROXIES)}


def own_address() -> str:
    """An address of this machine that is not loopback's; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


HOST = own_address()


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[tuple[Record, dict[str, str]]]:
    """The servers and proxies of one test, and what stands for the names in braces."""
    authority, other = ClusterAuthority(key_usage=True), ClusterAuthority(key_usage=True)
    names = ("127.0.0.1", HOST, "kubernetes", "api.example.test")
    (client, client_key), (_, other_key) = authority.issue("a-client"), authority.issue("another")
    record = Record()
    async with AsyncExitStack() as stack:
        for name in ("one", "two"):
            tls = authority.server_context(folder, *names)
            tls.verify_mode = ssl.CERT_OPTIONAL
            tls.load_verify_locations(cadata=authority.pem.decode())
            await stack.enter_async_context(api_server(record, name, tls))
        await stack.enter_async_context(api_server(record, "plain", None))
        await stack.enter_async_context(http_proxy(record, "proxy", "one"))
        await stack.enter_async_context(
            http_proxy(record, "tls_proxy", "one", authority.server_context(folder, *names))
        )
        await stack.enter_async_context(http_proxy(record, "plain_proxy", "plain"))
        await stack.enter_async_context(socks_proxy(record, "socks", "one"))
        files = {"ca": authority.pem, "client.crt": client, "client.key": client_key}
        for name, content in files.items():
            (folder / name).write_bytes(content)
        in_base64 = {"CA": authority.pem, "OTHER_CA": other.pem, "CLIENT": client, "CLIENT_KEY": client_key}
        values = {name: base64.b64encode(pem).decode() for name, pem in {**in_base64, "OTHER_KEY": other_key}.items()}
        values |= {
            "CLIENT_PEM": json.dumps(client.decode())[1:-1],
            "CLIENT_KEY_PEM": json.dumps(client_key.decode())[1:-1],
        }
        values |= {"DIR": str(folder), "HOST": HOST, "PREFIX": HOST.rpartition(".")[0]}
        yield record, values | {name.upper(): str(port) for name, port in record.ports.items()}


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with each {NAME} replaced."""
    return re.sub(r"\{([A-Z_]+)\}", lambda found: values[found[1]], text)


def write_files(folder: Path, case: Case, values: Mapping[str, str]) -> None:
    """Write the files of the case into its folder; scripts are executable."""
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(filled(content if isinstance(content, str) else json.dumps(content), values))
        path.chmod(0o700)


async def run_kubectl(folder: Path, env: Mapping[str, str], words: Sequence[str], *, pod: bool) -> str:
    """Return the output of kubectl. A pod's account is where kubectl looks for it, in a mount namespace of its own."""
    command = ["kubectl", "get", "pods", *words]  # with --request-timeout it would ignore the pod's account
    if pod:
        run = f'mount -t tmpfs none /run && mkdir -p /{ACCOUNT} && cp "$0"/{ACCOUNT}/* /{ACCOUNT}/ && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", run, str(folder), *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return printed.decode()


def write_account(folder: Path, values: Mapping[str, str]) -> dict[str, str]:
    """A pod's account for server `two`; the variables of such a pod."""
    account = folder / ACCOUNT
    account.mkdir(parents=True)
    for name, text in {"token": "of-the-pod", "namespace": "of-the-pod"}.items():
        (account / name).write_text(text)
    (account / "ca.crt").write_bytes((folder / "ca").read_bytes())
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": values["TWO"]}


@pytest.mark.parametrize("name", CASES)
async def test_dtj_and_kubectl_ask_the_same(tmp_path: Path, name: str) -> None:
    """Server, proxy, namespace and credentials are one."""
    case = CASES[name]
    if case.pod and os.geteuid():
        pytest.skip("a mount namespace needs root")
    async with servers(tmp_path) as (record, values):
        write_files(tmp_path, case, values)
        env = {key: value for key, value in os.environ.items() if key not in UNSET} | {"HOME": str(tmp_path)}
        env |= write_account(tmp_path, values) if case.pod else {}
        env |= {key: filled(text, values) for key, text in case.env.items()}
        words = [filled(word, values) for word in case.words]
        judged = await run_kubectl(tmp_path, env, words, pod=case.pod)
        expected = record.take()
        env |= {"RINGTRAIN_SERVICE_ACCOUNT_DIR": str(tmp_path / ACCOUNT)}
        unset = dict.fromkeys(UNSET - env.keys())
        result = await asyncio.to_thread(CliRunner().invoke, main, ["list", *words], env={**unset, **env})
        found = record.take()
    assert (found, result.output) == (expected, result.output), judged
    assert not expected[0] if case.fails else expected[0], judged
    assert result.exit_code == 1
    assert "Traceback" not in result.output
