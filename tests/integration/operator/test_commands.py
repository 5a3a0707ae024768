"""`dtj` against an API server: what it prints and how it ends."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from support.asking import ask
from support.cluster import Cluster, OpenCluster, fake_cluster, namespace_of
from support.jobs import job
from support.scenario import open_scenario

from ringtrain_client.jobs.following import next_attempt
from ringtrain_client.jobs.page import serving_page
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.build.log_reader import LABEL_READER
from ringtrain_operator.cluster.api.resources import JOBS, PODS

DTJ = [sys.executable, "-m", "ringtrain_client.cli"]


async def dtj(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = DTJ,
) -> tuple[int, str]:
    """Exit code and output of a `dtj` of its own, with a kubeconfig for the cluster's admin."""
    process = await asyncio.create_subprocess_exec(
        *program,
        *arguments,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig(folder)), "COLUMNS": "200", **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_a_job_is_submitted_listed_suspended_and_deleted(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """The commands of a job's life, each with what it says."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    async with open_scenario(open_cluster, tmp_path / "nodes") as s:
        inside = ("-n", s.namespace)
        code, output = await dtj(s.cluster, tmp_path, "submit", str(file), *inside)
        assert (code, "digits created" in output) == (0, True), output
        code, output = await dtj(s.cluster, tmp_path, "submit", str(file), *inside)
        assert code == 1
        assert "exists already" in output
        await s.until_running()
        code, output = await dtj(s.cluster, tmp_path, "list", *inside)
        assert code == 0
        assert output.splitlines()[0].split() == ["NAME", "STATE", "WORKERS", "RESTARTS", "PROGRESS", "AGE"]
        assert output.splitlines()[1].split()[0] == "digits"
        code, output = await dtj(s.cluster, tmp_path, "suspend", "digits", *inside)
        assert (code, output) == (0, f"{s.namespace}/digits suspended\n")
        await s.until_state("Suspended")
        code, output = await dtj(s.cluster, tmp_path, "why", "digits", *inside)
        assert output.splitlines()[0] == "digits is Suspended"
        code, output = await dtj(s.cluster, tmp_path, "resume", "digits", *inside)
        assert code == 0
        await s.until_running(attempt=2)
        code, output = await dtj(s.cluster, tmp_path, "delete", "digits", *inside)
        assert code == 0
        await s.until_pods(0)
        for command in ("why", "ui", "suspend"):
            code, output = await dtj(s.cluster, tmp_path, command, "digits", *inside)
            assert (code, f"there is no job digits in namespace {s.namespace}; dtj list -A" in output) == (1, True), (
                output
            )


async def test_the_page_of_a_job_without_a_launcher_says_what_to_do(tmp_path: Path) -> None:
    """The link is served, and becomes the page when the launcher runs; meanwhile there is a line, and not a 404."""
    told: list[str] = []
    async with namespace_of(fake_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, job())
        await c.api.patch(JOBS, ns, "digits", {"status": {"state": "Queued"}}, subresource="status")
        async with serving_page(ClusterAccess(c.api, ns, told.append), "digits") as link:
            status, text = await asyncio.to_thread(ask, link)
    assert told == [f"{text.partition('; this page tries')[0]} (Queued)"]
    assert status == 503
    assert text.startswith(f"the launcher of {ns}/digits does not run; the page appears when it does, and `dtj why -n")


async def test_why_tells_the_chain_of_causes(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """From the job's condition to the scheduler's words about a pod."""
    worker = {**job()["spec"]["worker"], "devices": {"nvidia.com/gpu": 4}}
    async with open_scenario(open_cluster, tmp_path / "nodes") as s:
        await s.submit(worker=worker)
        await s.until_condition("Running", "False", "Insufficient")
        code, output = await dtj(s.cluster, tmp_path, "why", "digits", "-n", s.namespace)
        assert code == 0
        lines = output.splitlines()
        assert lines[0] == "digits is Pending"
        assert "Running=False" in lines[1]
        assert any("digits-worker-0: 0/2 nodes are available" in line for line in lines), output


async def test_why_tells_what_agents_say_of_the_launcher(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """A worker that can't reach the launcher says so in its own log, which nobody reads unasked."""
    problem = "the launcher at digits-launcher.digits:7350 has not been reached for 10 s: DNS resolution failed"
    async with open_scenario(open_cluster, tmp_path / "nodes") as s:
        s.runtime.script = lambda sandbox: sandbox.log.write_text(f"dials\n{problem}\n") and None
        await s.submit()
        await s.until_running()
        async with s.launcher_says(phase="Waiting"):
            said_why = await s.until_condition("Running", "False", "0 of 2 workers registered; not yet: ")
            assert said_why["reason"] == "WaitingForAgents"
            code, output = await dtj(s.cluster, tmp_path, "why", "digits", "-n", s.namespace)
        assert f"    pod digits-worker-0: {problem}" in output.splitlines(), (code, output)


async def test_logs_that_are_gone_are_said_to_be(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Without a launcher's pod, and one that can read the claim, the answer is where the log is, not a 404."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, job(logs={"persistentVolumeClaim": {"claimName": "runs"}}))
        ended = {"state": "Succeeded", "attempt": 1}
        await c.api.patch(JOBS, ns, "digits", {"status": ended}, subresource="status")
        evicting = asyncio.create_task(_evict_reader(c, ns))  # a real API server has refused it before
        code, output = await dtj(c, tmp_path, "logs", "digits", "-n", ns)
        evicting.cancel()
        assert code == 1
        assert "stored on the volume of claim runs" in output


async def _evict_reader(cluster: Cluster, namespace: str) -> None:
    """Evict the pod that is to read a log, once it is there."""
    while not (readers := await cluster.api.select(PODS, namespace, labels=LABEL_READER)):
        await asyncio.sleep(0.05)
    evicted = {"status": {"phase": "Failed", "reason": "Evicted"}}
    await cluster.api.patch(PODS, namespace, readers[0]["metadata"]["name"], evicted, subresource="status")


async def test_a_watched_list_prints_rows_that_change(tmp_path: Path) -> None:
    """In a pipe: each job at first, and one again when its state changes, until Ctrl-C."""
    async with namespace_of(fake_cluster()) as (c, ns):
        for name in ("digits", "other"):
            await c.api.create(JOBS, ns, job(name))
        process = await asyncio.create_subprocess_exec(
            *(*DTJ, "list", "--watch", "-n", ns),
            env={**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(120):
            first = [(await process.stdout.readline()).decode().split()[:2] for _ in range(3)]
            await c.api.patch(JOBS, ns, "other", {"status": {"state": "Failed"}}, subresource="status")
            then = (await process.stdout.readline()).decode().split()[:2]
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        assert first == [["NAME", "STATE"], ["digits", "Pending"], ["other", "Pending"]]
        assert then == ["other", "Failed"]


async def test_following_waits_for_the_start(tmp_path: Path) -> None:
    """Of a job that no operator has seen yet; and it ends when the job is suspended."""
    async with namespace_of(fake_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, job())
        process = await asyncio.create_subprocess_exec(
            *(*DTJ, "logs", "digits", "--follow", "-n", ns),
            env={**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(120):
            assert b"digits has not begun; dtj why digits prints the reason" in await process.stderr.readline()
            await c.api.patch(JOBS, ns, "digits", {"status": {"state": "Suspended"}}, subresource="status")
            assert b"digits has not begun and has no logs" in await process.stderr.read()
            assert await process.wait() == 1


async def test_watch_ends_with_the_job(tmp_path: Path) -> None:
    """Lines in a pipe while the job runs; the end is summed up, and the exit code is that of `dtj local`."""
    async with namespace_of(fake_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, job())
        watching = asyncio.create_task(dtj(c, tmp_path, "watch", "digits", "-n", ns))
        progress = {"step": 40, "totalSteps": 100, "loss": 0.5}
        running = {"state": "Running", "attempt": 1, "workers": "2/2", "progress": progress}
        await c.api.patch(JOBS, ns, "digits", {"status": running}, subresource="status")
        failure = {"attempt": 1, "rank": 3, "pod": "digits-worker-1", "reason": "RankFailed", "message": "a cause"}
        condition = {"type": "Failed", "status": "True", "reason": "RankFailed", "message": "a cause"}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        ended = {"state": "Failed", "failure": failure, "conditions": [condition]}
        await c.api.patch(JOBS, ns, "digits", {"status": ended}, subresource="status")
        code, output = await watching
        assert (code, "First failure of attempt 1: rank 3 (digits-worker-1)" in output) == (1, True), output
        await c.api.create(JOBS, ns, job("wrong"))
        rejected = {"state": "Rejected", "attempt": 0, "message": "spec.worker.template: a problem"}
        await c.api.patch(JOBS, ns, "wrong", {"status": rejected}, subresource="status")
        code, output = await dtj(c, tmp_path, "watch", "wrong", "-n", ns)
        assert (code, output) == (1, f"{ns}/wrong Rejected (attempt 0): spec.worker.template: a problem\n")
        code, output = await dtj(c, tmp_path, "watch", "nosuch", "-n", ns)
        assert (code, "job nosuch does not exist" in output) == (1, True), output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_is_a_script(tmp_path: Path, shell: str) -> None:
    """Every shell gets its own script, and takes it."""
    async with fake_cluster() as c:
        code, output = await dtj(c, tmp_path, "completion", shell)
    assert code == 0
    assert "_DTJ_COMPLETE" in output
    if shutil.which(shell):
        script = tmp_path / "completion"
        script.write_text(output)
        subprocess.run([shell, "-n", str(script)], check=True)


async def test_names_of_commands_and_jobs_are_completed(open_cluster: OpenCluster, tmp_path: Path) -> None:
    """Completion in a shell offers the commands, then the jobs of the namespace."""
    async with namespace_of(open_cluster()) as (c, ns):
        for name in ("digits", "other"):
            await c.api.create(JOBS, ns, job(name))
        _, commands = await complete(c, tmp_path, "dtj lo", 1)
        assert {line.partition(",")[2] for line in commands.splitlines()} == {"local", "logs"}
        _, jobs = await complete(c, tmp_path, f"dtj why -n {ns} d", 4)
        assert jobs.splitlines() == ["plain,digits"]


async def complete(cluster: Cluster, folder: Path, words: str, index: int) -> tuple[int, str]:
    """Return exit code and output of the completion in bash of the word at `index`."""
    asked = {"_DTJ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    return await dtj(cluster, folder, env=asked)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl (kubernetes.io/docs/tasks/tools)")
async def test_it_is_a_plugin_of_kubectl(open_cluster: OpenCluster, tmp_path: Path, venv_bin: Path) -> None:
    """`kubectl dtj list` is `dtj list`."""
    async with namespace_of(open_cluster()) as (c, ns):
        await c.api.create(JOBS, ns, job())
        path = {"PATH": f"{venv_bin}:{os.environ['PATH']}"}
        code, output = await dtj(c, tmp_path, "list", "--namespace", ns, env=path, program=["kubectl", "dtj"])
        assert (code, output.splitlines()[1].split()[0]) == (0, "digits"), output


async def test_commands_about_a_job_that_ends(tmp_path: Path) -> None:
    """--wait says why it failed; a rank that it never had is an error; nobody suspends what has ended."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(runPolicy={"backoffLimit": 0})))
    async with open_scenario(fake_cluster, tmp_path / "nodes") as s:
        inside = ("-n", s.namespace)
        waiting = asyncio.create_task(dtj(s.cluster, tmp_path, "submit", str(file), "--wait", *inside))
        await s.cluster.until_exists(JOBS, s.namespace, "digits")
        await s.until_running()
        code, output = await dtj(s.cluster, tmp_path, "logs", "digits", "--rank=9", *inside)
        assert (code, "--rank 9: digits has 2 ranks, 0 to 1" in output) == (1, True), output
        s.fail(code=3)
        code, output = await waiting
        assert code == 1
        assert "digits: Failed: BackoffLimitExceeded: attempt 1: rank 1 exited with 3" in output
        code, output = await dtj(s.cluster, tmp_path, "suspend", "digits", *inside)
        assert (code, "has ended (Failed)" in output) == (1, True), output
        code, output = await dtj(s.cluster, tmp_path, "delete", "absent", "digits", *inside)
        assert (code, "there is no job absent in" in output, "digits deleted" in output) == (1, True, True), output


async def test_nobody_waits_for_a_job_that_is_rejected(tmp_path: Path) -> None:
    """It goes on only when somebody changes it: --wait says why it can't run."""
    file, provisioning = tmp_path / "job.yaml", {"className": "queued-provisioning.gke.io"}
    file.write_text(yaml.safe_dump(job(scheduling={"provisioning": provisioning}, runPolicy={"suspend": True})))
    async with open_scenario(fake_cluster, tmp_path / "nodes") as s:
        words = ("submit", str(file), "--wait", "-n", s.namespace)
        waiting = asyncio.create_task(dtj(s.cluster, tmp_path, *words))
        await s.until_state("Suspended")
        label = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}
        await s.cluster.api.patch(JOBS, s.namespace, s.name, label)
        code, output = await waiting
        assert (code, "digits: Rejected: InvalidSpec: metadata.labels[kueue" in output) == (1, True), output


async def test_who_follows_a_job_is_told_of_the_next_attempt(tmp_path: Path) -> None:
    """Once its launcher runs; and that there is none any more when the job has ended."""
    async with open_scenario(fake_cluster, tmp_path / "nodes") as s:
        await s.submit()
        await s.until_running()
        following = asyncio.create_task(next_attempt(s.cluster.api, s.namespace, "digits", 1))
        s.fail(code=3)
        await s.until(lambda j: j["status"].get("attempt") == 2)
        s.skip(30)
        assert await following == 2
        await s.until_running(attempt=2)
        following = asyncio.create_task(next_attempt(s.cluster.api, s.namespace, "digits", 2))
        s.succeed(attempt=2)
        assert await following is None
