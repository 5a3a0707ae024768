"""Facts about pods that hold on the stand-in kubelet and on a real one: the same cases run on both.

tests/integration/operator/test_kubelet_contract.py runs them on the stand-in, tests/e2e/test_kubelet_contract.py on a
cluster. The stand-in with processes differs in these points, on which no test relies:

* It runs the first container only. With RootRuntime and ImageRuntime, init containers run before it, in order.
* It has no probe but an HTTP readiness probe, no preStop, activeDeadlineSeconds, resources, users or workingDir.
* An image volume is an empty folder, or has this environment's `ringtrain` if it is the agent's.
* A program without a handler ends on SIGTERM; as PID 1 of a real container it ignores the signal.
* A missing image waits with ImagePullBackOff from the start; a real kubelet reports ErrImagePull first.
* Before its container runs, it writes no containerStatuses if nothing is wrong; a real one has ContainerCreating.
* A pod that is deleted between two runs of its container is started once more, to be stopped.
* It writes the Events "Pulling" and "Pulled" only if a pull takes time (`pull_s`).
* `hostIP` differs from `podIP` in the node's network. Downward API volumes have the namespace only.
* Not compared, as no test can do it to a cluster's node: `press` (memory), `lose_node`, `go_silent`, a full log.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from ringtrain_operator.cluster.api.errors import ApiError, NotFound, ServerError, Unreachable
from ringtrain_operator.cluster.api.execute import CommandFailed, execute_in_pod
from ringtrain_operator.cluster.api.forward import ApiForwardEnds, port_forward
from ringtrain_operator.cluster.api.resources import CONFIG_MAPS, PODS, SECRETS, SERVICES
from support.nodes_under_test import HOLD, NodesUnderTest, condition_of, conditions_of, end_of, main_of
from support.ports import free_ports

Json = dict[str, Any]
Case = Callable[[NodesUnderTest], Awaitable[None]]
WELL = ("Succeeded", 0, "Completed")
ON_TERM = 'trap "echo -n bye >$MESSAGE; exit %d" TERM; ' + HOLD
IGNORES_TERM = "import os, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'up\\n')\nwhile True: signal.pause()"
COUNT = "echo run >>$DATA/runs; n=$(wc -l <$DATA/runs); echo run $n; echo -n $n >$MESSAGE; "
FETCH = """
import os, time, urllib.request
for _ in range(600):
    try:
        print(urllib.request.urlopen(f"http://{os.environ['ADDRESS']}/name", timeout=5).read().decode(), end="")
        break
    except OSError:
        time.sleep(0.1)  # the name may not be known yet
else:
    raise SystemExit("no answer within 60 s")
"""


async def ends(nodes: NodesUnderTest) -> None:
    """Phase, exit code, reason, conditions and log of a container that ends."""
    await nodes.run("well", "echo out; echo err >&2")
    await nodes.run("badly", "exit 3")
    await nodes.make("unknown", "no-such-program")
    for name, end in (("well", WELL), ("badly", ("Failed", 3, "Error"))):
        pod = await nodes.ended(name)
        assert (end_of(pod), conditions_of(pod)) == (end, "TTFF")
        assert (main_of(pod)["ready"], main_of(pod)["restartCount"], main_of(pod)["lastState"]) == (False, 0, {})
    assert sorted(await nodes.log("well")) == [b"err\n", b"out\n"]
    pod = await nodes.ended("unknown")
    assert end_of(pod) == ("Failed", 128, "StartError")
    assert "executable file not found in $PATH" in main_of(pod)["state"]["terminated"]["message"]


async def runs(nodes: NodesUnderTest) -> None:
    """Status of a container that runs; its start does not change later. The Event of its image names it."""
    await nodes.run("p", f"sleep 1.1; {HOLD}")  # its end is in another second than its start
    pod = await nodes.until("p", lambda p: main_of(p).get("ready"))
    assert (pod["status"]["phase"], conditions_of(pod)) == ("Running", "TTTT")
    assert "sha256:" in main_of(pod)["imageID"]
    assert pod["status"]["podIP"] == pod["status"]["podIPs"][0]["ip"]
    await nodes.up("p")
    ended = main_of(await nodes.end("p", 0))["state"]["terminated"]
    assert ended["startedAt"] == main_of(pod)["state"]["running"]["startedAt"] < ended["finishedAt"]
    pulled = await nodes.events.until(lambda c: c["object"]["reason"] == "Pulled")
    assert pulled["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert pulled.get("eventTime") or pulled["lastTimestamp"]


MESSAGES = {
    "file": ("File", "echo -n done >$MESSAGE", "done"),
    "long-file": ("File", "printf '%5000s' end >$MESSAGE", f"{'end':>4096}"),
    "no-file": ("File", "echo why; exit 1", ""),
    "log-of-failure": ("FallbackToLogsOnError", "echo why; exit 1", "why\n"),
    "log-of-success": ("FallbackToLogsOnError", "echo out", ""),
    "file-of-failure": ("FallbackToLogsOnError", "echo out; echo -n why >$MESSAGE; exit 1", "why"),
    "long-log": ("FallbackToLogsOnError", "printf '%3000s\\n' end; exit 1", f"{'end':>2047}\n"),
    "many-lines": (
        "FallbackToLogsOnError",
        "printf '%s\\n' {1..99}; exit 1",
        "\n".join(map(str, range(20, 100))) + "\n",
    ),
}


async def termination_messages(nodes: NodesUnderTest) -> None:
    """The end of the file, at most 4096 bytes; or of the log of a failure, at most 2048 bytes and 80 lines."""
    for name, (policy, script, _) in MESSAGES.items():
        await nodes.run(name, script, terminationMessagePolicy=policy)
    found = {name: main_of(await nodes.ended(name))["state"]["terminated"].get("message", "") for name in MESSAGES}
    assert found == {name: message for name, (_, _, message) in MESSAGES.items()}


async def deletion(nodes: NodesUnderTest) -> None:
    """A deleted pod has ended before it is gone, unless it is deleted by force."""
    await nodes.run("well", ON_TERM % 0)
    await nodes.run("badly", ON_TERM % 7)
    await nodes.run("forced", ON_TERM % 7)
    await nodes.make("stubborn", "python3", "-c", IGNORES_TERM, pod={"terminationGracePeriodSeconds": 1})
    await nodes.make("waiting", "true", image="Team/Train:1")
    await nodes.waiting("waiting", "InvalidImageName")
    for name in ("well", "badly", "forced", "stubborn"):
        await nodes.up(name)
    for name in ("well", "badly", "stubborn", "waiting"):
        await nodes.api.delete(PODS, nodes.namespace, name)
    await nodes.api.delete(PODS, nodes.namespace, "forced", grace_period_s=0)
    assert end_of(await nodes.deleted("well")) == WELL
    badly = await nodes.deleted("badly")
    assert (end_of(badly), main_of(badly)["state"]["terminated"]["message"]) == (("Failed", 7, "Error"), "bye")
    assert end_of(await nodes.deleted("stubborn")) == ("Failed", 137, "Error")
    assert (await nodes.deleted("waiting"))["status"]["phase"] == "Failed"
    assert (await nodes.deleted("forced"))["status"]["phase"] == "Running"


async def eviction(nodes: NodesUnderTest) -> None:
    """An evicted pod has the condition DisruptionTarget to its end."""
    await nodes.run("p", ON_TERM % 7)
    await nodes.up("p")
    await nodes.evict(nodes.namespace, "p")
    pod = await nodes.deleted("p")
    disrupted = condition_of(pod, "DisruptionTarget")
    assert (end_of(pod), disrupted["status"]) == (("Failed", 7, "Error"), "True")
    assert disrupted["reason"] == "EvictionByEvictionAPI"


async def restarts(nodes: NodesUnderTest) -> None:
    """Restart policies of pods. Volumes outlive a run; its log does not."""
    await nodes.run("on-failure", COUNT + "exit $((2 - n))", pod={"restartPolicy": "OnFailure"})
    await nodes.run("always", COUNT + "exit 1", pod={"restartPolicy": "Always"})
    await nodes.run("always-well", COUNT + "exit 0", pod={"restartPolicy": "Always"})
    await ends_well_after(nodes, "on-failure", 1)
    for name, code, reason in (("always", 1, "Error"), ("always-well", 0, "Completed")):
        pod = await nodes.waiting(name, "CrashLoopBackOff")
        main, last = main_of(pod), main_of(pod)["lastState"]["terminated"]
        assert (pod["status"]["phase"], main["ready"], conditions_of(pod)) == ("Running", False, "TTFF")
        assert (last["exitCode"], last["reason"], last["message"]) == (code, reason, str(main["restartCount"] + 1))


async def restart_rules(nodes: NodesUnderTest) -> None:
    """A rule of a container restarts it in a pod that restarts none."""
    if int((await nodes.api.raw_get("/version"))["minor"].rstrip("+")) < 35:
        pytest.skip("needs Kubernetes 1.35, which has restartPolicyRules")
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    by_rule = {"restartPolicy": "Never", "restartPolicyRules": rules}
    await nodes.run("by-rule", COUNT + "exit $(((2 - n) * 42))", **by_rule)
    await nodes.run("by-no-rule", COUNT + "exit 3", **by_rule)
    await ends_well_after(nodes, "by-rule", 42)
    pod = await nodes.ended("by-no-rule")
    assert (end_of(pod), main_of(pod)["restartCount"]) == (("Failed", 3, "Error"), 0)


async def ends_well_after(nodes: NodesUnderTest, name: str, code: int) -> None:
    """Assert that the pod's first run ends with `code` and that its second succeeds."""
    pod = await nodes.ended(name)
    last = main_of(pod)["lastState"]["terminated"]
    assert (end_of(pod), main_of(pod)["restartCount"]) == (WELL, 1)
    assert (last["exitCode"], last["reason"], last["message"]) == (code, "Error", "1")
    assert await nodes.log(name) == [b"run 2\n"]


MISSING_IMAGE, NO_CONFIG = "registry.invalid/missing:1", "CreateContainerConfigError"
UNSTARTABLE: dict[str, tuple[str, Json, str, str]] = {
    "missing": (MISSING_IMAGE, {}, "ImagePullBackOff", f'Back-off pulling image "{MISSING_IMAGE}"'),
    "invalid": ("Team/Train:1", {}, "InvalidImageName", 'couldn\'t parse image name "Team/Train:1"'),
    "root": ("root", {}, NO_CONFIG, "container has runAsNonRoot and image will run as root"),
    "as-root": ("worker", {"runAsUser": 0}, NO_CONFIG, "container's runAsUser breaks non-root policy"),
}


async def images(nodes: NodesUnderTest) -> None:
    """An image that cannot be had or run keeps a pod waiting, with a reason; there is no log."""
    for name, (image, context, _, _) in UNSTARTABLE.items():
        await nodes.make(name, "true", image=image, securityContext={"runAsNonRoot": True, **context})
    for name, (_, _, reason, message) in UNSTARTABLE.items():
        pod = await nodes.waiting(name, reason)
        assert message in main_of(pod)["state"]["waiting"]["message"]
        assert (pod["status"]["phase"], main_of(pod)["ready"], main_of(pod)["imageID"]) == ("Pending", False, "")
        with pytest.raises(ApiError, match="waiting to start") as refused:
            await nodes.log(name)
        assert refused.value.code == 400


def from_key(kind: str, **more: Any) -> Json:
    """Return a variable that has the value of the key k of the object "late"."""
    return {"name": "k", "valueFrom": {f"{kind}KeyRef": {"name": "late", "key": "k", **more}}}


MOUNT = [{"name": "v", "mountPath": "/v"}]
VARIABLES: dict[str, Json] = {
    "secret-key": {"env": [from_key("secret")]},
    "configmap-key": {"env": [from_key("configMap")]},
    "secret-from": {"envFrom": [{"secretRef": {"name": "late"}}]},
    "configmap-from": {"envFrom": [{"configMapRef": {"name": "late"}}]},
}
VOLUMES = {"secret": {"secret": {"secretName": "late"}}, "configmap": {"configMap": {"name": "late"}}}
OPTIONAL: Json = {
    "env": [from_key("secret", optional=True), from_key("configMap", optional=True)],
    "envFrom": [{f"{kind}Ref": {"name": "late", "optional": True}} for kind in ("secret", "configMap")],
    "pod": {"volumes": [{"name": "v", "secret": {"secretName": "late", "optional": True}}]},
}


def is_failed_mount(pod: str) -> Callable[[Json], bool]:
    """Return a test for the Event about the volume of `pod`, which has the name of the volume's kind."""
    message = f'MountVolume.SetUp failed for volume "v" : {pod} "late" not found'

    def matches(change: Json) -> bool:
        event = change["object"]
        return (event["involvedObject"]["name"], event["reason"], event["message"]) == (pod, "FailedMount", message)

    return matches


async def missing_objects(nodes: NodesUnderTest) -> None:
    """A ConfigMap or Secret that is missing is waited for, unless it is optional; the words tell which."""
    for name, fields in VARIABLES.items():
        await nodes.run(name, "echo $k", **fields)
    for name, source in VOLUMES.items():
        await nodes.make(name, "cat", "/v/k", pod={"volumes": [{"name": "v", **source}]}, volumeMounts=MOUNT)
    await nodes.run("optional", "echo ${k-unset}", **OPTIONAL, volumeMounts=MOUNT)
    for name in VARIABLES:
        waiting = main_of(await nodes.waiting(name, NO_CONFIG))["state"]["waiting"]
        assert waiting["message"] == f'{name.partition("-")[0]} "late" not found'
    for name in VOLUMES:
        await nodes.events.until(is_failed_mount(name))
    await nodes.ended("optional")
    assert await nodes.log("optional") == [b"unset\n"]
    await nodes.api.create(CONFIG_MAPS, nodes.namespace, {"metadata": {"name": "late"}, "data": {"k": "v\n"}})
    await nodes.api.create(SECRETS, nodes.namespace, {"metadata": {"name": "late"}, "stringData": {"k": "v\n"}})
    for name in (*VARIABLES, *VOLUMES):
        assert end_of(await nodes.ended(name)) == WELL
        assert b"".join(await nodes.log(name)).strip() == b"v"


FIELDS = {
    "NAME": "metadata.name",
    "NAMESPACE": "metadata.namespace",
    "UID": "metadata.uid",
    "LABEL": "metadata.labels['name']",
    "NODE": "spec.nodeName",
    "ACCOUNT": "spec.serviceAccountName",
    "IP": "status.podIP",
}


async def variables(nodes: NodesUnderTest) -> None:
    """Fields of the pod as variables; references in variables, command and arguments."""
    env: list[Json] = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in FIELDS.items()]
    env += [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)b $$(A) $(C)"}, {"name": "C", "value": "c"}]
    words = ["$(C)", "$$(C)", "$(UNKNOWN)", *(f"$({name})" for name in FIELDS)]
    await nodes.make("p", "printf", "%s\n", "$(B)", args=words, env=env)
    pod = await nodes.ended("p")
    lines = ["ab $(A) $(C)", "c", "$(C)", "$(UNKNOWN)", "p", nodes.namespace, pod["metadata"]["uid"], "p"]
    lines += [pod["spec"]["nodeName"], "default", pod["status"]["podIP"]]
    assert [line.decode().rstrip("\n") for line in await nodes.log("p")] == lines


async def mounts(nodes: NodesUnderTest) -> None:
    """Files of ConfigMaps, Secrets, both in one volume, one file alone, and the ServiceAccount's token."""
    await nodes.api.create(CONFIG_MAPS, nodes.namespace, {"metadata": {"name": "c"}, "data": {"a": "1\n", "b": "2\n"}})
    await nodes.api.create(SECRETS, nodes.namespace, {"metadata": {"name": "s"}, "stringData": {"k": "3\n"}})
    items = {"items": [{"key": "k", "path": "path"}]}
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "secret", "secret": {"secretName": "s", **items}},
        {"name": "both", "projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "s", **items}}]}},
    ]
    mounted = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    mounted.append({"name": "config", "mountPath": "/one", "subPath": "b"})
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    files = ["/config/a", "/one", "/secret/path", "/both/b", "/both/path", f"{account}/namespace", f"{account}/token"]
    await nodes.make("p", "cat", *files, pod={"volumes": volumes}, volumeMounts=mounted)
    await nodes.ended("p")
    text = b"".join(await nodes.log("p")).decode()
    assert re.fullmatch(rf"1\n2\n3\n2\n3\n{nodes.namespace}[\w-]+\.[\w-]+\.[\w-]+", text), text


class Answer(ApiForwardEnds):
    """Collects what a forwarded port sends."""

    def __init__(self) -> None:
        self.answered, self.data = False, b""

    async def read(self) -> bytes:
        """Wait until cancelled: nothing follows the request."""
        await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        """Add `data` to the answer."""
        self.answered, self.data = True, self.data + data


async def network(nodes: NodesUnderTest) -> None:
    """A pod is ready when its probe is answered; others find it by its name in a Service. Forwarding reaches ports."""
    served, closed = free_ports(2)
    probe = {"httpGet": {"port": "http", "path": "/ready"}, "periodSeconds": 1}
    ports = [{"name": "http", "containerPort": served}]
    service = {"clusterIP": "None", "selector": {"name": "server"}}
    await nodes.api.create(SERVICES, nodes.namespace, {"metadata": {"name": "service"}, "spec": service})
    command = ["python3", "-m", "http.server", str(served), "--directory", "$(DATA)"]
    hosts = {"hostname": "server", "subdomain": "service"}
    await nodes.make("server", *command, pod=hosts, ports=ports, readinessProbe=probe)
    pod = await nodes.running("server")
    assert (main_of(pod)["ready"], conditions_of(pod)) == (False, "TTFF")
    await nodes.output("server", "echo found >$DATA/name; touch $DATA/ready")
    ready = await nodes.until("server", lambda p: main_of(p).get("ready"))
    assert (main_of(ready)["state"], conditions_of(ready)) == (main_of(pod)["state"], "TTTT")
    await nodes.make("client", "python3", "-c", FETCH, env=[{"name": "ADDRESS", "value": f"server.service:{served}"}])
    await nodes.ended("client")
    assert await nodes.log("client") == [b"found\n"]
    answer, request = Answer(), b"GET /name HTTP/1.0\r\n\r\n"
    await port_forward(nodes.api.connection, nodes.namespace, "server", served, request, answer)
    assert answer.data.endswith(b"\r\n\r\nfound\n")
    with pytest.raises(Unreachable, match=str(closed)):
        await port_forward(nodes.api.connection, nodes.namespace, "server", closed, request, Answer())


async def commands(nodes: NodesUnderTest) -> None:
    """A command has the container's variables, reports its exit code, and ends with the container."""
    await nodes.run("p", HOLD, env=[{"name": "A", "value": "a"}])
    await nodes.up("p")
    assert await nodes.output("p", "echo $A; echo aside >&2") == b"a\n"
    with pytest.raises(CommandFailed, match=r"^why$"):
        await nodes.output("p", "echo why >&2; exit 3")
    with pytest.raises(CommandFailed, match=r"command terminated with non-zero exit code.*\b3$"):
        await nodes.output("p", "exit 3")
    command = ["python3", "-c", IGNORES_TERM]
    async with aclosing(execute_in_pod(nodes.api.connection, nodes.namespace, "p", "main", command)) as output:
        assert await anext(output) == b"up\n"
        await nodes.end("p", 0)
        with pytest.raises(Unreachable):
            await anext(output)
    with pytest.raises((NotFound, ServerError)):
        await nodes.output("p", "true")


async def logs(nodes: NodesUnderTest) -> None:
    """A log can be followed to the container's end, and read later, from the last lines on if wanted."""
    await nodes.run("p", HOLD)
    await nodes.up("p")
    async with aclosing(nodes.api.pod_log(nodes.namespace, "p", follow=True)) as lines:
        assert await anext(lines) == b"up\n"
        await nodes.end("p", 0)
        assert [line async for line in lines] == [b"down\n"]
    assert await nodes.log("p") == [b"up\n", b"down\n"]
    assert await nodes.log("p", tail_lines=1, container="main") == [b"down\n"]
    assert await nodes.log("p", tail_lines=1, follow=True) == [b"down\n"]


async def placing(nodes: NodesUnderTest) -> None:
    """A pod with a gate is not placed before its removal; a pod that needs absent devices has the reason."""
    await nodes.run("gated", "true", pod={"schedulingGates": [{"name": "example.com/gate"}]})
    await nodes.run("large", "true", resources={"limits": {"example.com/device": "1"}})
    pod = await nodes.until("large", lambda p: condition_of(p, "PodScheduled"))
    placed = condition_of(pod, "PodScheduled")
    assert (pod["status"]["phase"], placed["status"], placed["reason"]) == ("Pending", "False", "Unschedulable")
    assert re.match(r"0/\d+ nodes are available: .*\d+ Insufficient example.com/device", placed["message"])
    gated = await nodes.until("gated", lambda p: condition_of(p, "PodScheduled"))
    assert condition_of(gated, "PodScheduled")["reason"] == "SchedulingGated"
    await nodes.api.patch(PODS, nodes.namespace, "gated", {"spec": {"schedulingGates": None}})
    assert end_of(await nodes.ended("gated")) == WELL


CASES: tuple[Case, ...] = (
    *(ends, runs, termination_messages, deletion, eviction, restarts, restart_rules, images, missing_objects),
    *(variables, mounts, network, commands, logs, placing),
)
