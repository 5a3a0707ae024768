"""An agent's measurements of its machine."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.commands import completed
from support.needs import need

from ringtrain_job.agent.machine import Gpus, MachineSampler, MachineThread, MemoryCgroup
from ringtrain_job.agent.ranks import AgentRanks
from ringtrain_job.logs.samples import GpuUse, MachineSample, RankUse, read_sample

GIB = 1 << 30
FILES = {
    "v2": {
        "memory.max": "max",
        "memory.current": f"{8 * GIB}",
        "memory.peak": f"{8 * GIB}",
        "memory.stat": f"anon 1\ninactive_file {GIB}",
        "memory.events": "oom 0\noom_kill 0",
    },
    "v1": {
        "memory.limit_in_bytes": str(2**63 - 4096),
        "memory.usage_in_bytes": f"{8 * GIB}",
        "memory.max_usage_in_bytes": f"{8 * GIB}",
        "memory.stat": f"cache 1\ntotal_inactive_file {GIB}",
        "memory.oom_control": "under_oom 0\noom_kill 0",
    },
}
SAMPLE = MachineSample(0, 1.0, 7 * GIB, 8 * GIB, 0, 0, None, {3: RankUse(1, 6 * GIB)})
# Eats memory, and processor time in a child.
EATS = """
import subprocess, sys
held = bytearray(b"x") * (64 << 20)
subprocess.Popen([sys.executable, "-c", "while True: pass"])
while True: sys.stdin.read()
"""


def memory(root: Path, version: str) -> MemoryCgroup:
    """Memory of a container of 8 GiB in a pod without a limit, of which 7 GiB are in use and 1 GiB is page cache."""
    mount = root / "memory" if version == "v1" else root
    pod, container = mount / "pod", mount / "pod/container"
    container.mkdir(parents=True)
    for folder in (pod, container):
        for name, text in FILES[version].items():
            (folder / name).write_text(text)
    next(container.glob("memory.[lm]*i*t_in_bytes"), container / "memory.max").write_text(str(8 * GIB))
    controller = "4:memory" if version == "v1" else "0:"
    (root / "own").write_text(f"{controller}:/pod/container\n")
    return MemoryCgroup(root, root / "own")


@pytest.mark.parametrize("version", FILES)
def test_memory_is_that_of_the_tightest_group(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions of cgroups are supported; the page cache that the kernel frees first does not count."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB))
    found = memory(tmp_path, version)
    assert (found.limit, found.used(), found.peak(), found.kills()) == (8 * GIB, 7 * GIB, 8 * GIB, 0)


def test_without_groups_memory_is_the_machines(tmp_path: Path) -> None:
    """No cgroup is mounted."""
    found = MemoryCgroup(tmp_path, tmp_path / "own")
    assert found.limit == psutil.virtual_memory().total
    assert 0 < found.used() < found.limit
    assert found.peak() is None


@pytest.mark.parametrize(
    ("counted", "code", "says"),
    [
        (
            1,
            -9,
            "was killed by SIGKILL: memory 8.0 of 8.0 GiB, 6.0 GiB of it the rank's when last seen; the kernel ",
        ),
        (0, -9, ""),  # somebody else has killed it
        (1, 1, "exited with 1 after the kernel had killed a process for lack of memory: 8.0 of 8.0 GiB"),
        (0, 1, ""),
    ],
)
def test_a_rank_that_ended_for_want_of_memory(
    counted: int, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message contains the available memory if the kernel counted a kill of the rank or of one of its processes."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB))
    ranks = AgentRanks(3, 1)
    machine = MachineSampler(0, ranks.pids, memory(tmp_path, "v2"))
    machine.note(replace(SAMPLE, memory=6 * GIB))
    ranks.end_cause = machine.end_cause
    (tmp_path / "pod/container/memory.events").write_text(f"oom {counted}\noom_kill {counted}\n")
    ranks.note_exit(3, code)
    message = ranks.state(3).message
    assert message.startswith(f"rank 3 {says}") if says else message == ""


def test_nearly_all_memory_in_use_explains_a_kill_that_nobody_counts(tmp_path: Path) -> None:
    """The runtime may hide the container's own cgroup."""
    machine = MachineSampler(0, dict, memory(tmp_path, "v2"))
    machine.note(replace(SAMPLE, memory=7.9 * GIB))
    assert machine.end_cause(4, -9) == "rank 4 was killed by SIGKILL: memory 7.9 of 8.0 GiB"
    assert machine.end_cause(4, 1) == ""


@pytest.mark.slow
def test_a_look_counts_all_processes_of_a_rank_and_costs_little() -> None:
    """A thread that looks as often as it may takes less than 0.5 % of a core."""
    rank = subprocess.Popen([sys.executable, "-c", EATS], start_new_session=True)
    seen, enough = [], threading.Event()

    def tell(sample: MachineSample) -> None:
        seen.append(sample)
        if sample.ranks[0].cpu > 0.1 and sample.ranks[0].rss > 64 << 20:
            enough.set()

    machine = MachineSampler(0, lambda: {0: rank.pid})
    spent, looks = time.thread_time(), 20
    for _ in range(looks):
        machine.take_sample()
    cost = (time.thread_time() - spent) / looks
    thread = MachineThread(machine, tell)
    thread.start()
    try:
        assert enough.wait(60)
    finally:
        thread.close()
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
    assert read_sample(seen[-1].document()) == seen[-1]
    assert thread.pause_after(cost, 0.0) >= cost / 0.005


DRIVER = """
typedef void *device;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) { *found = (device)(long)(index + 1); return 0; }
int nvmlDeviceGetMemoryInfo(device one, unsigned long long total_free_used[3]) {
    total_free_used[0] = 80ull << 30;
    total_free_used[2] = (unsigned long long)(long)one << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(device one, unsigned gpu_memory[2]) { gpu_memory[0] = 75; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for a stand-in of NVIDIA's driver")
def test_gpus_are_asked_by_nvml(tmp_path: Path) -> None:
    """NVIDIA's package uses a replacement of the driver with two GPUs; without a driver there are no GPUs."""
    need("pynvml")
    assert Gpus().read() == ()
    build = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "libnvidia-ml.so.1")]
    subprocess.run(build, input=DRIVER, text=True, check=True)
    program = "from ringtrain_job.agent.machine import Gpus; print(Gpus().read())"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    asked = completed([sys.executable, "-c", program], env=env, check=True)
    assert asked.stdout.strip() == str((GpuUse(0.75, GIB, 80 * GIB), GpuUse(0.75, 2 * GIB, 80 * GIB)))


@pytest.mark.parametrize(
    "wrong",
    [None, {}, {"worker": 0}, {**SAMPLE.document(), "memory": float("inf")}, {**SAMPLE.document(), "ranks": 3}],
)
def test_what_is_no_sample(wrong: object) -> None:
    """Ranks may write anything to their pipe."""
    assert read_sample(wrong) is None
