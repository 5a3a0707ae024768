"""Translation of a built pod to a command on this machine."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs import job

from ringtrain_client.local.contents import Contents, read_contents
from ringtrain_client.local.places import LocalPlaces
from ringtrain_client.local.sandbox import LocalPodCommand, command_of, expand
from ringtrain_operator import build, contract
from ringtrain_operator.errors import Invalid, LocalUnsupported
from ringtrain_operator.spec.parse import parse_job


def places(root: Path) -> LocalPlaces:
    """Return directories under `root`."""
    return LocalPlaces(root / "run", root / "claims")


Fields = dict[str, Any]


def command(
    root: Path, container: Fields | None = None, pod: Fields | None = None, contents: Contents | None = None
) -> LocalPodCommand:
    """Return the command of worker 1 of a job with these template fields and a claim at /data."""
    claim = {"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "/data"}
    manifest = job(checkpoint=claim)
    manifest["metadata"]["uid"] = "0a1b2c3d"
    template = manifest["spec"]["worker"]["template"]["spec"]
    template["containers"][0].update(container or {})
    template.update(pod or {})
    parsed = parse_job(manifest, templates=False)
    secret = build.build_secret(parsed, dict.fromkeys(contract.SECRET_KEYS, b"x"))["metadata"]["name"]
    built = build.build_worker_pod(parsed, 1, 1)
    pod_dir = root / "pod"
    pod_dir.mkdir()
    own = {("Secret", secret): dict.fromkeys(contract.SECRET_KEYS, b"x")}
    return command_of(built, places(root), pod_dir, {**own, **(contents or {})})


def test_the_environment_is_this_machines(tmp_path: Path) -> None:
    """Addresses are loopback, ports are free or 0, paths are existing directories."""
    env = command(tmp_path).env
    host, port = env[contract.ENV_LAUNCHER_ADDRESS].split(":")
    assert (host, env[contract.ENV_POD_IP]) == ("127.0.0.1", "127.0.0.1")
    assert int(port) != contract.PORT_LAUNCHER
    assert env[contract.ENV_AGENT_PORT] == env[contract.ENV_RING_PORT_BASE] == "0"
    assert env[contract.ENV_POD_NAME] == "digits-worker-1"
    assert Path(env[contract.ENV_CHECKPOINT_DIR]) == (tmp_path / "claims/c/digits-0a1b2c3d").resolve()
    assert env["PATH"].startswith(str(Path(sys.executable).parent))


def test_secrets_are_for_this_user_only(tmp_path: Path) -> None:
    """Secret files have mode 0600, and the role's key pair has the contract's names."""
    directory = Path(command(tmp_path).env[contract.ENV_SECRET_DIR])
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == dict.fromkeys(("ca.crt", "tls.crt", "tls.key", "token"), 0o600)


def test_paths_in_arguments_are_mapped(tmp_path: Path) -> None:
    """A mounted path is replaced in the command; a path that only has the same prefix is not."""
    argv = command(tmp_path, {"command": ["t", "--dir=/data/x", "/data", "/database"]}).argv
    here = (tmp_path / "claims/c").resolve()
    assert argv[-3:] == (f"--dir={here}/x", str(here), "/database")


def test_paths_in_a_script_are_mapped(tmp_path: Path) -> None:
    """Paths in a shell's script are replaced, except after a variable or another directory."""
    there = "cd /data; cat </data/hosts >$(cat /data/x) '/data/y'"
    other = "ls $HOME/data ./data s3://b/data /data-2"
    argv = command(tmp_path, {"command": ["sh", "-c", f"{there}; {other}"]}).argv
    here = (tmp_path / "claims/c").resolve()
    assert argv[-1] == f"{there.replace('/data', str(here))}; {other}"


def test_a_template_may_have_a_path_of_its_own(tmp_path: Path) -> None:
    """ringtrain and python are found although the template defines PATH."""
    env = command(tmp_path, {"env": [{"name": "PATH", "value": "/opt/x/bin:/bin"}]}).env
    assert env["PATH"] == f"{Path(sys.executable).parent}:/opt/x/bin:/bin"


def test_another_jobs_world_is_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables by which a rank could join another job are not inherited."""
    for name in ("RINGTRAIN_RANK", "TF_CONFIG", "RANK", "MASTER_ADDR", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("HOME_OF_TESTS", "kept")
    env = command(tmp_path).env
    assert env["HOME_OF_TESTS"] == "kept"
    assert "7" not in {env.get(name) for name in ("RINGTRAIN_RANK", "TF_CONFIG", "RANK", "PMI_RANK")}


@pytest.mark.parametrize(
    ("container", "pod", "says"),
    [
        pytest.param(
            {"envFrom": [{"configMapRef": {"name": "c"}}]},
            {},
            "ConfigMap 'c' is not in the job's file",
            id="env-from",
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]}, {}, "Secret .* is not in", id="secret-key"
        ),
        pytest.param(
            {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
            "ConfigMap 'c' is not in the job's file",
            id="config-map",
        ),
        pytest.param({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, {}, "names no volume", id="no-volume"),
    ],
)
def test_what_needs_a_cluster_is_said(
    tmp_path: Path, container: dict[str, Any], pod: dict[str, Any], says: str
) -> None:
    """A pod that needs a cluster is refused with the field that needs it."""
    with pytest.raises(LocalUnsupported, match=says):
        command(tmp_path, container, pod)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)-b", "1-b"), ("$(NO)", "$(NO)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("a$(A)$(A)", "a11")],
)
def test_references_expand_as_a_kubelet_does(text: str, expanded: str) -> None:
    """Known names are replaced, unknown ones stay, $$ becomes $."""
    assert expand(text, {"A": "1"}) == expanded


def test_what_stands_beside_the_job_is_there(tmp_path: Path) -> None:
    """ConfigMaps and Secrets of the file are available as variables and files, as by a kubelet."""
    beside = read_contents(
        [
            {
                "kind": "ConfigMap",
                "metadata": {"name": "c"},
                "data": {"A": "1", "1x": "2", "t.py": "print()"},
            },
            {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "elsewhere"}, "data": {"A": "3"}},
            {
                "kind": "Secret",
                "metadata": {"name": "s"},
                "data": {"key": "b2xk", "other": "b2xk"},
                "stringData": {"key": "new"},
            },
        ],
        "default",
    )
    missing = {"name": "none", "optional": True}
    container = {
        "command": ["python", "/code/t.py"],
        "envFrom": [
            {"prefix": "C_", "configMapRef": {"name": "c"}},
            {"configMapRef": {"name": "c"}},
            {"secretRef": missing},
        ],
        "env": [
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
            {"name": "TWICE", "value": "$(C_A)$(KEY)"},
            {"name": "GONE", "valueFrom": {"configMapKeyRef": {**missing, "key": "k"}}},
            {"name": "GONE_TOO", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
        ],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "keys", "mountPath": "/keys"}],
    }
    keys = {"secretName": "s", "items": [{"key": "other", "path": "deep/er"}]}
    volumes = [{"name": "code", "configMap": {"name": "c"}}, {"name": "keys", "secret": keys}]
    found = command(tmp_path, container, {"volumes": volumes}, beside)
    own = {name: found.env.get(name) for name in ("C_A", "KEY", "TWICE", "GONE", "GONE_TOO", "C_1x", "1x")}
    assert own == {
        "C_A": "1",
        "KEY": "new",
        "TWICE": "1new",
        "GONE": None,
        "GONE_TOO": None,
        "C_1x": "2",
        "1x": None,
    }
    assert Path(found.argv[-1]).read_text() == "print()"
    (secret,) = (tmp_path / "pod" / "volumes" / "keys").rglob("er")
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("old", 0o600)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"kind": "Secret", "data": {"k": "%%%"}}, r"Secret s: data\.k: is not base64; stringData takes plain text"),
        ({"kind": "Secret", "data": {"k": "put yours here"}}, r"Secret s: data\.k: is not base64"),
        (
            {"kind": "Secret", "stringData": {"a b": "x"}},
            r"Secret s: stringData\['a b'\]: is not a valid key; expected",
        ),
        ({"kind": "ConfigMap", "data": {"..": "x"}}, r"ConfigMap s: data\['\.\.'\]: is not a valid key; expected"),
        ({"kind": "Secret", "data": {"k": "é"}}, r"Secret s: data\.k: is not base64"),
        (
            {"kind": "ConfigMap", "binaryData": {"k": "%"}},
            r"ConfigMap s: binaryData\.k: is '%', not base64; data takes plain text",
        ),
        ({"kind": "ConfigMap", "data": {"k": 1}}, r"ConfigMap s: data\.k: is 1; expected a string: put it in quotes"),
        ({"kind": "ConfigMap", "data": {"k": None}}, r"ConfigMap s: data\.k: is null; expected a string"),
        ({"kind": "Secret", "stringData": {"k": ["a"]}}, r"Secret s: stringData\.k: is \['a'\]; expected a string"),
        ({"kind": "ConfigMap", "data": [1]}, r"ConfigMap s: data: is \[1\]; expected a mapping"),
        ({"kind": "ConfigMap", "data": "a"}, r"ConfigMap s: data: is 'a'; expected a mapping"),
        ({"kind": "ConfigMap", "metadata": "a"}, r"ConfigMap: metadata: is 'a'; expected a mapping"),
        ({"kind": "ConfigMap", "metadata": ["a"]}, r"ConfigMap: metadata: is \['a'\]; expected a mapping"),
    ],
)
def test_what_the_api_server_would_refuse_is_said(document: dict[str, Any], says: str) -> None:
    """The error has the field and the expected value; `dtj validate` and `dtj local` print it."""
    with pytest.raises(Invalid, match=says):
        read_contents([{"metadata": {"name": "s"}, **document}], "default")


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "b"}}}
    with pytest.raises(LocalUnsupported, match="ConfigMap 'c' has no key 'b'; it has a"):
        command(tmp_path, {"env": [variable]}, contents={("ConfigMap", "c"): {"a": b""}})
