"""A pod's volumes as folders of this machine: claims, Secrets, and the ServiceAccount's token."""

import base64
from pathlib import Path
from typing import Any

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.cluster.api.resources import SECRETS, SERVICE_ACCOUNTS, ApiResource
from support.objects import subresource

Json = dict[str, Any]
CONFIG_MAPS = ApiResource("v1", "ConfigMap", "configmaps")
# OpenShift's build of the API server mounts it with every token; only OpenShift's own controllers make it.
NOT_MADE_HERE = "openshift-service-ca.crt"


class Missing(Exception):
    """Error: an object that a container needs does not exist. The message is a kubelet's."""


class NotMounted(Missing):
    """Error: an object of a volume does not exist."""


async def read_data(api: ApiClient, namespace: str, source: Json, kind: str) -> dict[str, bytes]:
    """Return the data of the Secret or ConfigMap (`kind`) of a volume or variable; empty if it is optional and absent.

    Raises Missing.
    """
    resource, name = SECRETS if kind == "secret" else CONFIG_MAPS, source.get("secretName") or source["name"]
    try:
        data = (await api.get(resource, namespace, name)).get("data") or {}
    except NotFound as exc:
        if source.get("optional"):
            return {}
        raise Missing(f'{kind.lower()} "{name}" not found') from exc
    return {key: base64.b64decode(value) if kind == "secret" else value.encode() for key, value in data.items()}


async def look_for_config_maps(api: ApiClient, pod: Json) -> None:
    """Return if each ConfigMap that is a volume of the pod is there. Raises NotMounted."""
    for volume in pod["spec"].get("volumes") or ():
        if "configMap" in volume:
            await _volume_files(api, pod, volume)


async def make_volume(api: ApiClient, pod: Json, volume: Json, folder: Path) -> Path:
    """The folder of one volume, filled. Raises NotMounted for a Secret or ConfigMap that is not there."""
    path = folder / "volumes" / volume["name"]
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    if claim:  # a claim outlives the pod: it lies beside the pods of its namespace
        path = folder.parent / "claims" / claim
    path.mkdir(parents=True, exist_ok=True)
    for name, content in (await _volume_files(api, pod, volume)).items():
        file = path / name
        file.touch(mode=0o600)
        file.write_bytes(content)
    return path


async def _volume_files(api: ApiClient, pod: Json, volume: Json) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
        try:
            files |= await _files(api, pod, source)
        except (Missing, NotFound) as exc:
            raise NotMounted(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {exc}') from exc
    return files


async def _files(api: ApiClient, pod: Json, source: Json) -> dict[str, bytes]:
    namespace = pod["metadata"]["namespace"]
    for kind in ("secret", "configMap"):
        if kind in source and source[kind].get("name") != NOT_MADE_HERE:
            return _chosen(source[kind], await read_data(api, namespace, source[kind], kind))
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: await _token(api, pod, wanted.get("expirationSeconds") or 3600)}
    if "downwardAPI" in source:  # of a ServiceAccount's volume: the namespace
        return {item["path"]: namespace.encode() for item in source["downwardAPI"].get("items") or []}
    return {}


def _chosen(source: Json, data: dict[str, bytes]) -> dict[str, bytes]:
    items = {i["key"]: i["path"] for i in source.get("items") or []} or {key: key for key in data}
    return {path: data[key] for key, path in items.items() if data or not source.get("optional")}


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
