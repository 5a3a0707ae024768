"""An attempt ends while no operator runs, and its launcher's pod is removed before one reads how it ended."""

from pathlib import Path

import pytest
from support.cluster import OpenCluster
from support.jobs import condition, termination_message
from support.operating import end_operator, running_operator
from support.scenario import running_job

from ringtrain_operator.cluster.api.resources import PODS


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
async def test_the_launchers_pod_is_removed_unseen(open_cluster: OpenCluster, tmp_path: Path, end: str) -> None:
    """A success is one, and a failure is judged: the workers' pods say how the attempt ended."""
    rules = [{"action": "FailJob", "onExitCodes": {"values": [3]}}]
    async with running_job(open_cluster, tmp_path, runPolicy={"failureRules": rules}) as s:
        assert s.operator is not None
        await end_operator(s.operator)
        if end == "Succeeded":
            for name in s.pod_names(2):
                s.runtime.finish(name, message=termination_message())
        else:
            s.fail(code=3)
        for name in s.pod_names(2):
            ended = lambda pod: pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed")  # noqa: E731
            await s.cluster.until(PODS, s.namespace, name, ended)
        await s.cluster.api.delete(PODS, s.namespace, "digits-launcher")
        await s.cluster.until(PODS, s.namespace, "digits-launcher", lambda pod: pod is None)
        async with running_operator(s.cluster.operator_connection, s.clock, namespaces=(s.namespace,)):
            job = await s.until_state("Succeeded", "Failed", "Restarting")
            assert (job["status"]["state"], job["status"]["attempt"]) == (end, 1)
            if end == "Succeeded":
                assert "was deleted before its end was read" in condition(job, "Succeeded")["message"]
