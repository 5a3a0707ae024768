"""`dtj logs`: one rank's whole log, of a running attempt, of one before, and of a job that has ended."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from support.cluster import Cluster, OpenCluster, namespace_of
from support.jobs import python_job, state
from support.kubelet import Kubelet, ProcessRuntime
from support.operating import running_operator
from support.scenario import operated

from ringtrain_operator.build.log_reader import LABEL_READER
from ringtrain_operator.cluster.api.resources import JOBS, PODS

DTJ = [sys.executable, "-m", "ringtrain_client.cli"]

# Attempt 1 fails in rank 1; in attempt 2 every rank writes one line, waits for a file, and writes more.
PROGRAM = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["RINGTRAIN_ATTEMPT"]
print("begin", attempt, rank)
if attempt == "1":
    sys.exit(3 if rank == "1" else 0)
while not pathlib.Path(os.environ["GO_ON"]).exists():
    time.sleep(0.05)
print("50%\\r100%")
print("end", attempt, rank)
"""


def talking_job(go_on: Path) -> dict[str, Any]:
    """Two workers of two ranks each, with their logs on a claim."""
    logs = {"persistentVolumeClaim": {"claimName": "runs"}}
    return python_job("talk", PROGRAM, go_on, workers=2, slotsPerWorker=2, logs=logs)


async def start_dtj(c: Cluster, folder: Path, namespace: str, *arguments: str) -> asyncio.subprocess.Process:
    """`dtj logs talk …` with its output in pipes."""
    return await asyncio.create_subprocess_exec(
        *(*DTJ, "logs", "talk", "--namespace", namespace, *arguments),
        env={**os.environ, "KUBECONFIG": str(c.kubeconfig(folder))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def logs(c: Cluster, folder: Path, namespace: str, *arguments: str) -> str:
    """Run `dtj logs talk …` and return its output, or "error: " and its stderr if it fails."""
    process = await start_dtj(c, folder, namespace, *arguments)
    out, err = await process.communicate()
    return out.decode() if process.returncode == 0 else f"error: {err.decode()}"


async def test_one_ranks_whole_log(open_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """Followed while it runs, of an attempt before, and when all is over; what is gone is said to be."""
    go_on, whole = tmp_path / "go-on", "begin 2 3\n50%{}100%\nend 2 3\n"
    async with operated(open_cluster(), runtime, tmp_path / "nodes") as (c, ns):
        await c.api.create(JOBS, ns, talking_job(go_on))
        await c.until(JOBS, ns, "talk", lambda j: state(j) == "Running" and j["status"]["attempt"] == 2)
        following = await start_dtj(c, tmp_path, ns, "--rank=3", "--follow")
        assert following.stdout is not None
        first = await following.stdout.readline()
        assert first == b"begin 2 3\n", await following.communicate()
        assert await logs(c, tmp_path, ns, "--rank=0", "--attempt=1") == "begin 1 0\n"
        merged = await logs(c, tmp_path, ns, "--attempt=1")
        assert sorted(merged.splitlines()) == [f"[{rank}] begin 1 {rank}" for rank in range(4)]
        assert "attempts with logs: 1, 2" in await logs(c, tmp_path, ns, "--attempt=5")
        assert "talk has 4 ranks, 0 to 3" in await logs(c, tmp_path, ns, "--rank=4")
        if c.fake is not None:
            await without_the_right_to_exec(c, tmp_path, ns)
        refused = c.fake.faults.add("GET", "pods/exec", 500) if c.fake is not None else None
        late = await start_dtj(c, tmp_path, ns, "--rank=3") if refused else None
        while refused and not refused.fired:
            await c.pause()
        go_on.touch()
        if late is not None:  # the container has ended, and the pod says so in a moment
            out, err = await late.communicate()
            assert (out.decode(), late.returncode) == (whole.format("\n"), 0), err
        rest, _ = await following.communicate()
        assert "begin 2 3\n" + rest.decode() in (whole.format("\r"), whole.format("\n"))
        await c.until(JOBS, ns, "talk", lambda j: state(j) == "Succeeded")
        assert await logs(c, tmp_path, ns, "--rank=3") == whole.format("\n")
        assert await logs(c, tmp_path, ns, "--rank=3", "--tail=1") == "end 2 3\n"
        assert "[3] end 2 3" in await logs(c, tmp_path, ns)
        await from_the_claim(c, tmp_path, ns, whole.format("\r"))


async def from_the_claim(c: Cluster, folder: Path, namespace: str, whole: str) -> None:
    """Of earlier attempts, and of a launcher that is gone, a pod reads the store, and goes."""
    assert await logs(c, folder, namespace, "--rank=3", "--attempt=1") == "begin 1 3\n"
    assert "attempts with logs: 1, 2" in await logs(c, folder, namespace, "--attempt=5")
    await c.api.delete(PODS, namespace, "talk-launcher")
    await c.until_gone(PODS, namespace, "talk-launcher")
    assert await logs(c, folder, namespace, "--rank=3") == whole
    assert await logs(c, folder, namespace, "--tail=0") == ""
    if c.fake is not None:
        c.fake.faults.add("POST", "pods", 403)
        refused = await logs(c, folder, namespace, "--rank=3")
        assert f"stored on the volume of claim runs, in {namespace}/talk/2/" in refused
    await until_no_reader(c, namespace)


async def until_no_reader(c: Cluster, namespace: str) -> None:
    """Return when no pod is left that was made to read logs."""
    async with asyncio.timeout(30.0):
        while await c.api.select(PODS, namespace, labels=f"{LABEL_READER}=talk"):
            await c.pause()


MUCH = """
import os, sys
rank = os.environ["RANK"]
sys.stdout.writelines(f"{rank} {line:06d} of many\\n" for line in range(150_000))
"""


async def test_more_than_a_node_keeps(one_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime) -> None:
    """Four ranks' 150,000 lines each are all read when the job has ended, of which its node serves 10 MiB."""
    job = talking_job(tmp_path)
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"][-1] = MUCH
    async with operated(one_cluster(), runtime, tmp_path / "nodes") as (c, ns):
        await c.api.create(JOBS, ns, job)
        await c.until(JOBS, ns, "talk", lambda j: state(j) == "Succeeded", within_s=180.0)
        served = [line async for line in c.api.pod_log(ns, "talk-launcher")]
        assert sum(map(len, served)) <= 10 << 20
        lines = [f"1 {line:06d} of many" for line in range(150_000)]
        assert (await logs(c, tmp_path, ns, "--rank=1")).splitlines() == lines
        merged = (await logs(c, tmp_path, ns)).splitlines()
        assert [line[4:] for line in merged if line.startswith("[1] ")] == lines
        assert len(merged) == 600_000
        interrupted = await start_dtj(c, tmp_path, ns)
        assert interrupted.stdout is not None
        await interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        await interrupted.communicate()
        assert interrupted.returncode != 0
        await until_no_reader(c, ns)


async def without_the_right_to_exec(c: Cluster, folder: Path, namespace: str) -> None:
    """One rank's log is then what the launcher's output has of it, and that is said."""
    assert c.fake is not None
    fault = c.fake.faults.add("GET", "pods/exec", 403)
    process = await start_dtj(c, folder, namespace, "--rank=3")
    out, err = await process.communicate()
    assert (out, process.returncode, fault.fired) == (b"begin 2 3\n", 0, 1)
    assert b"from the launcher's output instead" in err


# Each attempt waits for a file of its own; the first then fails in rank 1.
TWICE = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["RINGTRAIN_ATTEMPT"]
print("begin", attempt, rank, flush=True)
while not pathlib.Path(os.environ["GO_ON"] + attempt).exists():
    time.sleep(0.05)
print("end", attempt, rank, flush=True)
sys.exit(3 if (attempt, rank) == ("1", "1") else 0)
"""


async def test_following_goes_on_with_the_next_attempt(
    open_cluster: OpenCluster, tmp_path: Path, runtime: ProcessRuntime
) -> None:
    """`-f` prints one attempt after the other, says where the next begins, and ends with the job.

    Connections that end meanwhile cost no line.
    """
    job = talking_job(tmp_path / "go-on-")
    job["spec"]["worker"]["replicas"] = 1
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"][-1] = TWICE
    async with (
        namespace_of(open_cluster()) as (c, ns),
        Kubelet(c.api, runtime, tmp_path / "nodes", namespace=ns) as kubelet,
        running_operator(c.operator_connection, namespaces=(ns,)),
    ):
        await c.api.create(JOBS, ns, job)
        await c.until(JOBS, ns, "talk", lambda j: state(j) == "Running")
        merged = await start_dtj(c, tmp_path, ns, "-f")
        assert merged.stdout is not None
        lines = [await merged.stdout.readline()]
        (tmp_path / "go-on-1").touch()
        while lines[-1] != b"[0] begin 2 0\n":
            lines.append(await merged.stdout.readline())
            assert lines[-1], await merged.communicate()
        kubelet.cut_logs()
        (tmp_path / "go-on-2").touch()
        rest, stderr = await merged.communicate()
        text = b"".join(lines) + rest
        expected = [b"[0] %s %d 0\n" % (word, n) for n in (1, 2) for word in (b"begin", b"end")]
        assert [text.count(line) for line in expected] == [1] * 4, text
        assert (merged.returncode, b"attempt 2 of talk begins" in stderr) == (0, True), stderr
