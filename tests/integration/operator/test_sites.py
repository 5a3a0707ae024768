"""Jobs whose sites a label of nodes names: the operator reads it, the launcher waits for it, ranks know it."""

import asyncio
import json
from pathlib import Path

import pytest
from support.cluster import OpenCluster, namespace_of
from support.jobs import python_job, state
from support.kubelet import Kubelet, ProcessRuntime
from support.operating import running_operator

from ringtrain_operator.cluster.api.resources import JOBS, NODES, PODS

LABEL = "example.com/room"
# Tells the sites that a rank knows.
PROGRAM = """
import json, os, pathlib
import ringtrain as rt
rt.init()
found = {"site": rt.site(), "sites": rt.sites(), "encrypt": os.environ.get("RINGTRAIN_ENCRYPT")}
pathlib.Path(os.environ["GO_ON"], f"{rt.rank()}.json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize("missing", [False, True], ids=["labelled", "one-without-a-label"])
async def test_ranks_know_the_site_of_their_node(
    open_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime, missing: bool
) -> None:
    """As the label of the node says on which their pod is; a node without it ends the job, by name."""
    told = tmp_path / "told"
    told.mkdir()
    async with namespace_of(open_cluster()) as (c, ns):
        names = tuple(f"{ns}-{letter}" for letter in "abc")
        labels = {name: {} if missing else {LABEL: f"room-{index % 2}"} for index, name in enumerate(names)}
        async with (
            Kubelet(c.api, runtime, tmp_path / "nodes", namespace=ns, nodes=names),
            running_operator(c.operator_connection, namespaces=(ns,)),
        ):
            for name, own in labels.items():
                await c.api.patch(NODES, None, name, {"metadata": {"labels": own}})
            job = python_job("far", PROGRAM, told, workers=3, slotsPerWorker=2, networking={"sites": LABEL})
            job["spec"]["runPolicy"] = {"backoffLimit": 0, "cleanPodPolicy": "None"}
            await c.api.create(JOBS, ns, job)
            done = await c.until(JOBS, ns, "far", lambda j: state(j) in ("Succeeded", "Failed"))
            pods = await asyncio.gather(*(c.api.get(PODS, ns, f"far-worker-{index}") for index in range(3)))
    nodes = [pod["spec"]["nodeName"] for pod in pods]
    if missing:
        assert state(done) == "Failed"
        assert f"node {nodes[0]} of far-worker-0 has no label {LABEL}" in json.dumps(done["status"])
        return
    assert state(done) == "Succeeded", done["status"]
    site_of = {rank: labels[nodes[rank // 2]][LABEL] for rank in range(6)}
    sites: dict[str, list[int]] = {}
    for rank, name in site_of.items():
        sites.setdefault(name, []).append(rank)
    for rank, name in site_of.items():
        found = json.loads((told / f"{rank}.json").read_text())
        expected = {"site": name, "sites": sites, "encrypt": "sites"}
        assert found == expected, (found, nodes)
