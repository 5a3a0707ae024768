"""Kubeconfigs as people have them, for a test in which kubectl and dtj read each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`files`: kubeconfigs and others by path; `words`: options; `fails`: whether both must refuse.

    In the values of all of them {ONE}, {TWO}, {PLAIN}, {PROXY}, {SOCKS} are ports, {DIR} is the folder, {HOST} this
    machine, {CA} the CA in base64. `pod`: whether a pod's account is there.
    """

    files: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    pod: bool = False
    fails: bool = False


def config(
    cluster: Json | None = None,
    user: Json | None = None,
    *,
    name: str = "c",
    current: str | None = None,
    **context: str,
) -> Json:
    """A kubeconfig with one of each, all of one name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name if current is None else current,
        "clusters": [{"name": name, "cluster": cluster or one()}],
        "users": [{"name": name, "user": {"token": f"token-{name}"} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
    }


def one(**fields: Any) -> Json:
    """The cluster whose server is `one`."""
    return {"server": "https://127.0.0.1:{ONE}", "certificate-authority-data": "{CA}", **fields}


def two() -> Json:
    """The cluster whose server is `two`."""
    return one(server="https://127.0.0.1:{TWO}")


def far(**fields: Any) -> Json:
    """A cluster that only proxies can reach."""
    return one(server="https://api.example.test:6443", **fields)


def user(**fields: Any) -> Case:
    """A case of a user."""
    return Case({".kube/config": config(user={name.replace("_", "-"): value for name, value in fields.items()})})


def plugin(script: str, **fields: Any) -> Case:
    """A case of an exec plugin, a shell script."""
    given = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "./plugin"}
    text = f"#!/bin/sh\n{script}\n"
    return Case({".kube/config": config(user={"exec": {**given, **fields}}), ".kube/plugin": text})


def printed(version: str = "v1", **status: str) -> str:
    """The shell command that prints a credential."""
    answer = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential", "status": status}
    return f"cat <<'END'\n{json.dumps(answer)}\nEND"


def refused(case: Case) -> Case:
    """The case as one that both refuse."""
    return Case(case.files, case.env, case.words, case.pod, fails=True)


def proxied(cluster: Json, **env: str) -> Case:
    """A case of proxies."""
    return Case({".kube/config": config(cluster)}, env=env)


HERE = one(server="https://{HOST}:{ONE}")
AB = {"KUBECONFIG": "{DIR}/a:{DIR}/b"}
TWO_OF_EACH = {"a": config(name="a"), "b": config(two(), name="b", namespace="of-b")}
FILES = {
    "home": Case({".kube/config": config(namespace="team")}),
    "option-namespace": Case({".kube/config": config(namespace="team")}, words=["--namespace", "other"]),
    "option-context": Case(TWO_OF_EACH, AB, ["--context", "b"]),
    "option-kubeconfig": Case(TWO_OF_EACH, {"KUBECONFIG": "{DIR}/a"}, ["--kubeconfig", "{DIR}/b"]),
    "option-kubeconfig-missing": Case(TWO_OF_EACH, AB, ["--kubeconfig", "{DIR}/none"], fails=True),
    "variable-before-home": Case({**TWO_OF_EACH, ".kube/config": config(two())}, {"KUBECONFIG": "{DIR}/a"}),
    "several": Case(TWO_OF_EACH, AB),
    "several-other-order": Case(TWO_OF_EACH, {"KUBECONFIG": "{DIR}/b:{DIR}/a"}),
    "several-one-missing": Case(TWO_OF_EACH, {"KUBECONFIG": "{DIR}/none::{DIR}/b"}),
    "several-all-missing": Case({".kube/config": config()}, {"KUBECONFIG": "{DIR}/none:{DIR}/nor-this"}, fails=True),
    "several-first-entry-wins-whole": Case(
        {"a": config(current=""), "b": config(two(), {"username": "me", "password": "p"}, namespace="of-b")}, AB
    ),
    "several-share-entries": Case(
        {
            "a": {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "c"}}], "current-context": "x"},
            "b": config(),
        },
        AB,
    ),
    "several-empty": Case({"a": "", "b": config()}, AB),
    "several-one-broken": Case({"a": "{", "b": config()}, AB, fails=True),
    "context-missing": Case({".kube/config": config()}, words=["--context", "none"], fails=True),
    "current-context-missing": Case({".kube/config": config(current="none")}, fails=True),
    "no-current-context": Case({".kube/config": config(current="")}, fails=True),
    "cluster-missing": Case({".kube/config": {**config(), "clusters": []}}, fails=True),
    "user-missing": Case({".kube/config": {**config(), "users": None}}, fails=True),
    "twice": Case({".kube/config": {**config(), "users": 2 * config()["users"]}}, fails=True),
    "wrong-type": Case({".kube/config": config(user={"token": 7})}, fails=True),
    "other-kind": Case({".kube/config": {**config(), "kind": "Pod"}}, fails=True),
    "unknown-fields": Case({".kube/config": {**config(one(extensions=[])), "preferences": {}, "more": 1}}),
}
TLS = {
    "ca-file": Case(
        {".kube/config": config(one(**{"certificate-authority-data": "", "certificate-authority": "../ca"}))}
    ),
    "ca-missing": Case(
        {".kube/config": config(one(**{"certificate-authority-data": "", "certificate-authority": "n"}))}, fails=True
    ),
    "ca-no-pem": Case({".kube/config": config(one(**{"certificate-authority-data": "bm8="}))}, fails=True),
    "ca-other": Case({".kube/config": config(one(**{"certificate-authority-data": "{OTHER_CA}"}))}, fails=True),
    "ca-of-the-system": Case({".kube/config": config({"server": "https://127.0.0.1:{ONE}"})}, fails=True),
    "insecure": Case({".kube/config": config({"server": "https://127.0.0.1:{ONE}", "insecure-skip-tls-verify": True})}),
    "insecure-and-ca": Case({".kube/config": config(one(**{"insecure-skip-tls-verify": True}))}, fails=True),
    "host-not-in-certificate": Case({".kube/config": config(one(server="https://localhost:{ONE}"))}, fails=True),
    "tls-server-name": Case(
        {".kube/config": config(one(server="https://localhost:{ONE}", **{"tls-server-name": "kubernetes"}))}
    ),
    "tls-server-name-other": Case({".kube/config": config(one(**{"tls-server-name": "other"}))}, fails=True),
    "http-gets-no-credentials": Case({".kube/config": config({"server": "http://127.0.0.1:{PLAIN}"})}),
    "no-scheme": Case({".kube/config": config({"server": "127.0.0.1:{PLAIN}"})}),
    "no-scheme-and-ca": Case({".kube/config": config(one(server="127.0.0.1:{PLAIN}"))}),
    "path": Case({".kube/config": config(one(server="https://127.0.0.1:{ONE}/k8s/clusters/c/"))}),
}
EXTRA = {"team": ["x"]}
USERS = {
    "none": refused(user()),
    "token": user(token="t"),
    "token-file": Case({".kube/config": config(user={"tokenFile": "../t"}), "t": "from-file\n"}),
    "token-file-before-token": Case(
        {".kube/config": config(user={"tokenFile": "../t", "token": "given"}), "t": "from-file"}
    ),
    "token-file-missing": refused(user(tokenFile="none")),
    "basic": user(username="me", password="p:ä"),
    "basic-and-token": refused(user(username="me", password="p", token="t")),
    "certificate-data": user(client_certificate_data="{CLIENT}", client_key_data="{CLIENT_KEY}"),
    "certificate-files": user(client_certificate="../client.crt", client_key="../client.key"),
    "certificate-and-token": user(client_certificate="../client.crt", client_key="../client.key", token="t"),
    "certificate-without-key": refused(user(client_certificate="../client.crt")),
    "certificate-with-another-key": refused(user(client_certificate_data="{CLIENT}", client_key_data="{OTHER_KEY}")),
    "impersonates": Case(
        {
            ".kube/config": config(
                user={"token": "t", "as": "jo", "as-uid": "7", "as-groups": ["g", "h"], "as-user-extra": EXTRA}
            )
        }
    ),
    "impersonates-nobody": refused(user(token="t", as_groups=["g"])),
    "exec-token": plugin(printed(token="from-plugin")),
    "exec-v1beta1": plugin(
        printed("v1beta1", token="t"), apiVersion="client.authentication.k8s.io/v1beta1", interactiveMode=None
    ),
    "exec-variables": plugin(
        'test "$A$1" = bc && ' + printed(token="t"), args=["c"], env=[{"name": "A", "value": "b"}]
    ),
    "exec-is-told": plugin(
        'case "$KUBERNETES_EXEC_INFO" in *"https://127.0.0.1"*) ;; *) exit 1;; esac\n' + printed(token="t"),
        provideClusterInfo=True,
    ),
    "exec-certificate": plugin(printed(clientCertificateData="{CLIENT_PEM}", clientKeyData="{CLIENT_KEY_PEM}")),
    "exec-beside-token": Case(
        {**plugin("exit 1").files, ".kube/config": config(user={"token": "t", "exec": {"command": "none"}})}, fails=True
    ),
    "exec-fails": refused(plugin("exit 3")),
    "exec-prints-nothing": refused(plugin("true")),
    "exec-prints-no-credential": refused(plugin(printed())),
    "exec-other-version": refused(plugin(printed("v1beta1", token="t"))),
    "exec-is-not-there": refused(plugin("true", command="ringtrain-no-such-plugin")),
    "exec-without-mode": refused(plugin(printed(token="t"), interactiveMode=None)),
    "exec-v1alpha1": refused(
        plugin(printed("v1alpha1", token="t"), apiVersion="client.authentication.k8s.io/v1alpha1")
    ),
    "exec-needs-a-terminal": refused(plugin(printed(token="t"), interactiveMode="Always")),
    "auth-provider": refused(user(auth_provider={"name": "gcp"})),
}
AT_PROXY = "http://127.0.0.1:{PROXY}"
PROXIES = {
    "proxy-url": proxied(far(**{"proxy-url": AT_PROXY})),
    "proxy-url-with-password": proxied(far(**{"proxy-url": "http://me:secret@127.0.0.1:{PROXY}"})),
    "proxy-url-socks5": proxied(far(**{"proxy-url": "socks5://127.0.0.1:{SOCKS}"})),
    "proxy-url-tls-server-name": proxied(
        one(server="https://elsewhere.test", **{"proxy-url": AT_PROXY, "tls-server-name": "kubernetes"})
    ),
    "proxy-url-before-variables": proxied(far(**{"proxy-url": AT_PROXY}), HTTPS_PROXY="http://127.0.0.1:1"),
    "proxy-url-loopback": proxied(one(**{"proxy-url": AT_PROXY})),
    "proxy-url-no-proxy": proxied(far(**{"proxy-url": AT_PROXY}), NO_PROXY="*"),
    "proxy-url-unknown": refused(proxied(one(**{"proxy-url": "ftp://127.0.0.1:{PROXY}"}))),
    "proxy-url-no-url": refused(proxied(one(**{"proxy-url": "127.0.0.1:{PROXY}"}))),
    "proxy-url-of-plain": proxied({"server": "http://plain.test", "proxy-url": "http://127.0.0.1:{PLAIN_PROXY}"}),
    "https-proxy": proxied(far(), HTTPS_PROXY=AT_PROXY),
    "https-proxy-lower-case": proxied(far(), https_proxy=AT_PROXY),
    "https-proxy-both": proxied(far(), HTTPS_PROXY=AT_PROXY, https_proxy="http://127.0.0.1:1"),
    "https-proxy-without-scheme": proxied(far(), HTTPS_PROXY="127.0.0.1:{PROXY}"),
    "https-proxy-socks5": proxied(far(), HTTPS_PROXY="socks5://127.0.0.1:{SOCKS}"),
    "https-proxy-not-for-loopback": proxied(one(), HTTPS_PROXY="http://127.0.0.1:1"),
    "https-proxy-not-for-http": proxied({"server": "http://127.0.0.1:{PLAIN}"}, HTTPS_PROXY="http://127.0.0.1:1"),
    "http-proxy": proxied({"server": "http://plain.test"}, HTTP_PROXY="http://127.0.0.1:{PLAIN_PROXY}"),
    "http-proxy-not-for-https": refused(proxied(far(), HTTP_PROXY=AT_PROXY)),
    "all-proxy-is-not-read": refused(proxied(far(), ALL_PROXY=AT_PROXY)),
    "proxied-address": proxied(HERE, HTTPS_PROXY=AT_PROXY),
}
# What excepts https://{HOST}:{ONE}, and what doesn't.
EXCEPTIONS = {
    "star": "*",
    "address": "{HOST}",
    "among-others": "other.test, {HOST}",
    "port": "{HOST}:{ONE}",
    "other-port": "{HOST}:1",
    "range": "{HOST}/24",
    "other-range": "203.0.113.0/24",
    "beginning": "{PREFIX}",
    "empty": "",
}
# The same for https://api.example.test:6443: those that except it are refused, for want of a name server.
DOMAINS = {
    "itself": "api.example.test",
    "parent": "example.test",
    "dot-parent": ".example.test",
    "star-parent": "*.example.test",
    "upper-case": "API.Example.Test",
    "port": "api.example.test:6443",
}
OTHERS = {"dot-itself": ".api.example.test", "other-port": "api.example.test:443", "part": "ample.test"}
PODS = {
    "account": Case({}, pod=True),
    "account-option-namespace": Case({}, words=["--namespace", "other"], pod=True),
    "account-pod-namespace": Case({}, {"POD_NAMESPACE": "named"}, pod=True),
    "home-wins": Case({".kube/config": config(namespace="team")}, pod=True),
    "namespace-of-the-pod": Case({".kube/config": config()}, pod=True),
    "default-is-named": Case({".kube/config": config(namespace="default")}, pod=True),
    "context": Case(TWO_OF_EACH, AB, ["--context", "b"], pod=True),
    "context-missing": Case({}, words=["--context", "none"], pod=True, fails=True),
    "context-missing-in-file": Case({".kube/config": config()}, words=["--context", "none"], pod=True, fails=True),
    "files-missing": Case({}, {"KUBECONFIG": "{DIR}/none"}, pod=True),
    "file-empty": Case({".kube/config": ""}, pod=True),
    "no-current-context": Case({".kube/config": config(current="")}, pod=True),
    "namespace-only": Case(
        {".kube/config": {"contexts": [{"name": "c", "context": {"namespace": "team"}}], "current-context": "c"}},
        pod=True,
    ),
    "cluster-missing": Case({".kube/config": {**config(), "clusters": []}}, pod=True),
    "https-proxy": Case({}, {"HTTPS_PROXY": "http://127.0.0.1:1"}, pod=True),
}
CASES = {
    **{f"files-{name}": case for name, case in FILES.items()},
    **{f"tls-{name}": case for name, case in TLS.items()},
    **{f"users-{name}": case for name, case in USERS.items()},
    **{f"proxies-{name}": case for name, case in PROXIES.items()},
    **{f"pods-{name}": case for name, case in PODS.items()},
    **{f"no-proxy-{name}": proxied(HERE, HTTPS_PROXY=AT_PROXY, NO_PROXY=text) for name, text in EXCEPTIONS.items()},
    **{f"domains-{name}": proxied(far(), HTTPS_PROXY=AT_PROXY, NO_PROXY=text) for name, text in OTHERS.items()},
    **{
        f"domains-{name}": refused(proxied(far(), HTTPS_PROXY=AT_PROXY, NO_PROXY=text))
        for name, text in DOMAINS.items()
    },
}
