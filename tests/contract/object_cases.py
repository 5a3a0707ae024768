"""ConfigMaps and Secrets that Kubernetes refuses, each with a part of the message, and some that it accepts.

`dtj validate` and a real API server judge the same table.
"""

from typing import Any

Object = dict[str, Any]
_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


def _config_map(**fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, **fields}


def _owned(**owner: Any) -> Object:
    return _config_map(metadata={"name": "c", "ownerReferences": [{**_OWNER, **owner}]})


def _secret(**fields: Any) -> Object:
    return {**_config_map(), "kind": "Secret", **fields}


WRONG: list[tuple[Object, str]] = [
    (_config_map(apiVersion="v2"), "ConfigMap c: apiVersion: is 'v2'"),
    ({"apiVersion": "v1", "kind": "ConfigMap"}, "ConfigMap: metadata.name: is missing"),
    (_config_map(dataa={}), "ConfigMap c: dataa: is not a field here; did you mean data?"),
    (_config_map(stringData={}), "ConfigMap c: stringData: is not a field here; did you mean binaryData?"),
    (_config_map(immutable="perhaps"), "ConfigMap c: immutable: is 'perhaps'; expected true or false"),
    (_secret(type=5), "Secret c: type: is 5; expected a text: write it in quotes"),
    (_config_map(metadata={"name": 5}), "ConfigMap 5: metadata.name: is 5; expected at most 253 lower-case"),
    (_config_map(metadata={"name": "My_Map"}), "ConfigMap My_Map: metadata.name: is 'My_Map'; expected at most 253"),
    (
        _config_map(metadata={"name": "c", "label": {}}),
        "ConfigMap c: metadata.label: is not a field here",
    ),
    (_config_map(metadata={"name": "c", "labels": {"a": 1}}), "metadata.labels[a]: is 1; expected a text: write it in"),
    (_config_map(metadata={"name": "c", "annotations": ["a"]}), "metadata.annotations: is ['a']; expected a mapping"),
    (
        _config_map(metadata={"name": "c", "namespace": 5}),
        "metadata.namespace: is 5; expected a text: write it in quotes",
    ),
    (_config_map(metadata=["c"]), "ConfigMap: metadata: is ['c']; expected a mapping"),
    (
        _config_map(metadata={"name": "c", "finalizers": ["x y"]}),
        "ConfigMap c: metadata.finalizers[0]: is 'x y'; expected",
    ),
    (
        _config_map(metadata={"name": "c", "finalizers": "x"}),
        "ConfigMap c: metadata.finalizers: is 'x'; must be a list",
    ),
    *(
        (_owned(**{field: value}), f"ConfigMap c: metadata.ownerReferences[0].{field}: is {said}")
        for field in _OWNER
        for value, said in ((None, "missing"), ("", "empty"))
    ),
    (_config_map(data=["a"]), "ConfigMap c: data: is ['a']; expected a mapping"),
    (_config_map(data=[]), "ConfigMap c: data: is []; expected a mapping"),
    (_config_map(data={"a": 1}), "ConfigMap c: data.a: is 1; expected a string: put it in quotes"),
    (_config_map(data={"a/b": "x"}), "ConfigMap c: data['a/b']: is not a valid key; expected letters"),
    (
        _config_map(data={"a": "x"}, binaryData={"a": ""}),
        "ConfigMap c: binaryData.a: is a key of data, too; remove one",
    ),
    (_config_map(data={"a": "x" * (1 << 20 | 1)}), "ConfigMap c: data: has 1048577 bytes; expected at most 1048576"),
    (_secret(data={"a": "%"}), "Secret c: data.a: is not base64; stringData takes plain text"),
    (
        _secret(type="kubernetes.io/tls", stringData={"tls.crt": ""}),
        "Secret c: data[tls.key]: is missing; a Secret of type kubernetes.io/tls needs it",
    ),
    (_secret(type="kubernetes.io/ssh-auth"), "Secret c: data[ssh-privatekey]: is missing"),
    (_secret(type="kubernetes.io/dockercfg"), "Secret c: data[.dockercfg]: is missing"),
    (_secret(type="kubernetes.io/dockerconfigjson"), "Secret c: data[.dockerconfigjson]: is missing"),
]
RIGHT: list[Object] = [
    _config_map(),
    _config_map(data={"a": "x" * (1 << 20)}, immutable=None),
    _config_map(data={"A_b-c.d": ""}, binaryData={"e": "eA=="}),
    _owned(controller=True),
    _config_map(metadata={"name": "c", "finalizers": ["foregroundDeletion", "a.b/c"], "ownerReferences": []}),
    _config_map(metadata={"name": "a.b-c", "labels": {"a": ""}, "annotations": None}),
    _secret(type="kubernetes.io/tls", data={"tls.crt": ""}, stringData={"tls.key": ""}),
    _secret(type="example.com/any", immutable=True),
]
