"""A job that does not run says why, in the words of whoever holds it up."""

from pathlib import Path

import pytest
from support.cluster import Json, OpenCluster, fake_cluster
from support.jobs import condition, termination_message, workers_with_devices
from support.kubelet.volumes import CONFIG_MAPS
from support.objects import pod
from support.scenario import Scenario, open_scenario

from ringtrain_operator.cluster.api.errors import Unprocessable
from ringtrain_operator.cluster.api.resources import EVENTS, PODS, SECRETS, SERVICES
from ringtrain_operator.observe.pods import owned_by


async def test_an_image_that_cannot_be_pulled_is_said(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The condition has the kubelet's own words. The job waits for as long as activeDeadlineSeconds lets it."""
    container = {"name": "train", "image": "missing:1", "command": ["train"]}
    template = {"spec": {"containers": [container], "imagePullSecrets": [{"name": "registry"}]}}
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(worker={"replicas": 2, "template": template}, runPolicy={"activeDeadlineSeconds": 3600})
        shown = await s.until_condition("Running", "False", "ImagePullBackOff")
        assert 'Back-off pulling image "missing:1"' in shown["message"]
        assert "Unable to retrieve some image pull secrets (registry)" in shown["message"]
        s.skip(3500)
        assert (await s.job())["status"]["restarts"] == 0
        s.skip(200)
        await s.until_condition("Failed", "True", "deadline")


async def test_a_job_that_never_ran_can_be_corrected(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Another image is applied: the next attempt runs it, uncounted. Then the template is fixed."""
    template = {"spec": {"containers": [{"name": "train", "image": "missing:1", "command": ["train"]}]}}
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(worker={"replicas": 2, "template": template})
        await s.until_condition("Running", "False", "ImagePullBackOff")
        template["spec"]["containers"][0]["image"] = "train:1"
        await s.change({"worker": {"template": template}})
        await s.until_running(attempt=2)
        job = await s.until(lambda j: j["status"]["ledger"].get("hasRun"))
        assert (job["status"]["restarts"], job["status"]["disruptions"]) == (0, 0)
        if s.cluster.operator_connection.server.startswith("https"):  # the fake server has no rules on changes
            template["spec"]["containers"][0]["image"] = "train:2"
            with pytest.raises(Unprocessable, match="while the job is suspended, or before it has run"):
                await s.change({"worker": {"template": template}})


async def test_an_image_whose_name_is_none_ends_the_job(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A digest has lower-case letters. The launcher has the worker's image, so all pods are refused, and then gone."""
    image = f"train@sha256:{'AB' * 32}"
    template = {"spec": {"containers": [{"name": "train", "image": image, "command": ["train"]}]}}
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(worker={"replicas": 2, "template": template})
        failed = await s.until_condition("Failed", "True", "CannotStart")
        assert f'InvalidImageName: couldn\'t parse image name "{image}"' in failed["message"]
        assert (await s.job())["status"]["restarts"] == 0
        s.skip(60)
        await s.until_pods(0)


@pytest.mark.parametrize("then", ["comes", "never-comes", "launcher-gives-up"])
async def test_a_volume_whose_config_map_is_not_there(open_cluster: OpenCluster, tmp_path: Path, then: str) -> None:
    """The kubelet says it in an event alone: the job says it, too, goes on when the ConfigMap comes, and ends
    after startTimeoutSeconds where it does not, also where that is too short for a look at events before."""
    container = {"name": "train", "image": "train:1", "command": ["train"]}
    volume = {"name": "settings", "configMap": {"name": "settings"}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(worker={"replicas": 2, "template": template}, networking={"startTimeoutSeconds": 100})
        for index in range(2):
            await s.cluster.until(PODS, s.namespace, f"digits-worker-{index}", has_node)
        await s.cluster.until(EVENTS, s.namespace, await mount_event(s), bool)
        if then == "launcher-gives-up":
            await s.cluster.until(PODS, s.namespace, "digits-launcher", is_running)
            gave_up = {"reason": "NotAssembled", "message": "2 workers have not registered"}
            s.runtime.finish("digits-launcher", 69, termination_message("Failed", **gave_up))
        else:
            s.skip(31)
            await s.until_condition("Running", "False", "FailedMount")
        if then == "comes":
            await s.cluster.api.create(CONFIG_MAPS, s.namespace, {"metadata": {"name": "settings"}, "data": {}})
            await s.until_running()
            return
        if then == "never-comes":
            s.skip(70)
        failed = condition(await s.until_state("Failed"), "Failed")
        assert failed["reason"] == "CannotStart"
        assert 'configmap "settings" not found' in failed["message"]
        s.skip(60)
        await s.until_pods(1 if then == "launcher-gives-up" else 0)  # a launcher that has ended stays, for its log


def is_running(pod: Json | None) -> bool:
    """Whether a pod runs."""
    return bool(pod and pod["status"].get("phase") == "Running")


def has_node(pod: Json | None) -> bool:
    """Whether the pod was placed."""
    return bool(pod and pod["spec"].get("nodeName"))


async def mount_event(s: Scenario) -> str:
    """Name of the event that tells of worker 0's volume."""
    pod = await s.cluster.api.get(PODS, s.namespace, "digits-worker-0")
    return f"digits-worker-0.{pod['metadata']['uid']}.failedmount"


async def test_a_pod_without_a_place_is_said(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The condition has the scheduler's own words; devices are on the workers and not on the launcher."""
    async with open_scenario(open_cluster, tmp_path) as s:
        await s.submit(worker=workers_with_devices(4))
        shown = await s.until_condition("Running", "False", "Insufficient nvidia.com/gpu")
        assert "0/2 nodes are available" in shown["message"]
        pods = {p["metadata"]["name"]: p["spec"]["containers"][0] for p in await s.pods()}
        resources = pods["digits-worker-0"]["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "4"
        assert "nvidia.com/gpu" not in str(pods["digits-launcher"].get("resources"))


async def test_a_foreign_object_of_our_name_is_not_touched(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A Service of somebody else's under the job's name stays as it is, and the job says what is in its way."""
    async with open_scenario(open_cluster, tmp_path) as s:
        spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
        theirs = await s.cluster.api.create(SERVICES, s.namespace, {"metadata": {"name": "digits"}, "spec": spec})
        await s.submit()
        await s.until_condition("Running", "False", "Service digits")
        now = await s.cluster.api.get(SERVICES, s.namespace, "digits")
        assert now["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
        await s.cluster.api.delete(SERVICES, s.namespace, "digits")
        await s.until_running(after_s=700)


async def test_a_foreign_pod_of_our_name_is_said(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Also one that nothing says to be in our way but its name; the job goes on when it is gone."""
    async with open_scenario(open_cluster, tmp_path) as s:
        theirs = await s.cluster.api.create(PODS, s.namespace, pod("digits-worker-1"))
        await s.submit()
        running = await s.until_condition("Running", "False", "Pod digits-worker-1")
        assert running["reason"] == "NameTaken"
        now = await s.cluster.api.get(PODS, s.namespace, "digits-worker-1")
        assert now["metadata"]["uid"] == theirs["metadata"]["uid"]
        await s.cluster.api.delete(PODS, s.namespace, "digits-worker-1", grace_period_s=0)
        await s.until_running(after_s=0)


async def test_an_invalid_spec_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid spec that the CRD admits sets a condition with field and value; the operator then writes no more."""
    async with open_scenario(fake_cluster, tmp_path) as s:
        fake = s.cluster.fake
        assert fake is not None
        await s.submit(workers=-3)
        shown = await s.until_condition("Accepted", "False", "spec.worker.replicas")
        assert "-3" in shown["message"]
        await s.cluster.until_quiet()
        writes = [(c.plural, c.subresource) for c in fake.calls if c.agent == "ringtrain-operator" and c.is_write]
        assert writes == [("distributedtrainingjobs", "status"), ("events", None)]
        assert not [r for r in caplog.records if r.exc_info]
        await s.change({"worker": {"replicas": 2}})
        await s.until_running()


async def test_a_planted_secret_is_not_used(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The job's pods do not mount a Secret that somebody created earlier under the name that the operator would use."""
    async with open_scenario(open_cluster, tmp_path) as s:
        uid = (await s.submit(runPolicy={"suspend": True}))["metadata"]["uid"]
        planted = {"metadata": {"name": f"digits-{uid[:8]}"}, "stringData": {"token": "known to somebody"}}
        await s.cluster.api.create(SECRETS, s.namespace, planted)
        await s.change({"runPolicy": {"suspend": False}})
        await s.until_running()
        for pod in await s.pods():
            volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
            assert volumes["ringtrain-secret"]["secret"]["secretName"] == f"digits-{uid[:8]}-1"
        made = await s.cluster.api.get(SECRETS, s.namespace, f"digits-{uid[:8]}-1")
        assert owned_by(made, uid)
