"""A pod's volumes as folders of this machine: claims, Secrets, and the ServiceAccount's token."""

import base64
from pathlib import Path
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.resources import SECRETS, SERVICE_ACCOUNTS, ApiResource
from support.objects import subresource

Json = dict[str, Any]
CONFIG_MAPS = ApiResource("v1", "ConfigMap", "configmaps")
# OpenShift's build of the API server mounts it with every token; only OpenShift's own controllers make it.
NOT_MADE_HERE = "openshift-service-ca.crt"


async def look_for_config_maps(api: ApiClient, pod: Json) -> None:
    """Return if each ConfigMap that is a volume of the pod is there. Raises NotFound."""
    for volume in pod["spec"].get("volumes") or ():
        source = volume.get("configMap")
        if source is not None and not source.get("optional"):
            await api.get(CONFIG_MAPS, pod["metadata"]["namespace"], source["name"])


async def make_volume(api: ApiClient, pod: Json, volume: Json, folder: Path) -> Path:
    """The folder of one volume, filled. Raises NotFound for a Secret or ConfigMap that is not there."""
    path = folder / "volumes" / volume["name"]
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    if claim:  # a claim outlives the pod: it lies beside the pods of its namespace
        path = folder.parent / "claims" / claim
    path.mkdir(parents=True, exist_ok=True)
    for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
        for name, content in (await _files(api, pod, source)).items():
            file = path / name
            file.touch(mode=0o600)
            file.write_bytes(content)
    return path


async def _files(api: ApiClient, pod: Json, source: Json) -> dict[str, bytes]:
    namespace = pod["metadata"]["namespace"]
    if "secret" in source:
        name = source["secret"].get("secretName") or source["secret"]["name"]
        data = (await api.get(SECRETS, namespace, name)).get("data") or {}
        return _chosen(source["secret"], {k: base64.b64decode(v) for k, v in data.items()})
    if "configMap" in source and source["configMap"]["name"] != NOT_MADE_HERE:
        data = (await api.get(CONFIG_MAPS, namespace, source["configMap"]["name"])).get("data") or {}
        return _chosen(source["configMap"], {k: v.encode() for k, v in data.items()})
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: await _token(api, pod, wanted.get("expirationSeconds") or 3600)}
    if "downwardAPI" in source:  # of a ServiceAccount's volume: the namespace
        return {item["path"]: namespace.encode() for item in source["downwardAPI"].get("items") or []}
    return {}


def _chosen(source: Json, data: dict[str, bytes]) -> dict[str, bytes]:
    items = {i["key"]: i["path"] for i in source.get("items") or []} or {key: key for key in data}
    return {path: data[key] for key, path in items.items()}


async def _token(api: ApiClient, pod: Json, lifetime_s: int) -> bytes:
    meta = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": lifetime_s, "boundObjectRef": bound},
    }
    account = pod["spec"]["serviceAccountName"]
    answer = await api.create(subresource(SERVICE_ACCOUNTS, account, "token"), meta["namespace"], request)
    return str(answer["status"]["token"]).encode()
