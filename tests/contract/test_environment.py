"""Environment variables that the operator sets, as the runtime reads them."""

import base64
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.deadlines import patient
from support.jobs import job
from support.ports import free_addresses
from support.small_job import environment as variables_of
from support.small_job import of_agent
from support.world_config import changed_config

import ringtrain
import ringtrain.shared.contract
import ringtrain_operator.contract
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError
from ringtrain_data_service.config import DataStreamSettings, DataWorkerConfig
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.rank_env import rank_environment
from ringtrain_job.control.model import World
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_mpi.implementation import MpiImplementation
from ringtrain_mpi.settings import MpiSettings
from ringtrain_operator import build
from ringtrain_operator.observe import pods
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job
from ringtrain_page.access import PageAccess

NOW = datetime.now(UTC)


def parsed(**spec: Any) -> Job:
    """Three workers with two slots, everything said that can be."""
    claim = {"persistentVolumeClaim": {"claimName": "c"}, "mountPath": "/data"}
    fields = {"slotsPerWorker": 2, "checkpoint": claim, "networking": {"timeoutSeconds": 7}, **spec}
    manifest = job(workers=3, **fields)
    manifest["metadata"] |= {"uid": "0a1b2c3d-4e5f", "namespace": "team"}
    return parse_job(manifest)


def environment(pod: dict[str, Any], secret_dir: Path) -> dict[str, str]:
    """The main container's environment as a kubelet makes it, its secret in `secret_dir`."""
    node = {
        "metadata.name": pod["metadata"]["name"], "metadata.uid": "9f8e", "status.podIP": "10.0.0.7",
        "spec.nodeName": "node-a",
    }  # fmt: skip
    found = {
        variable["name"]: variable.get("value") or node[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in pod["spec"]["containers"][0]["env"]
    }
    (volume,) = [v["secret"] for v in pod["spec"]["volumes"] if "secret" in v]
    credentials = build.build_secret(parsed(), build.issue_credentials(parsed(), NOW))["data"]
    for item in volume["items"]:
        path = secret_dir / item["path"]
        path.write_bytes(base64.b64decode(credentials[item["key"]]))
        path.chmod(0o600)
    return found | {"RINGTRAIN_SECRET_DIR": str(secret_dir)}


def test_an_agent_reads_what_is_built_for_a_worker(tmp_path: Path) -> None:
    """Every setting arrives as the spec says it."""
    config = AgentConfig.from_env(environment(build.build_worker_pod(parsed(), 4, 2), tmp_path))
    assert (config.job.name, config.job.namespace, config.job.uid) == ("digits", "team", "0a1b2c3d-4e5f")
    assert (config.job.attempt, config.workers, config.slots, config.index) == (4, 3, 2, 2)
    assert config.launcher_address == "digits-launcher.digits:7350"
    assert (config.pod, config.pod_uid, config.pod_ip, config.node) == (
        "digits-worker-2",
        "9f8e",
        "10.0.0.7",
        "node-a",
    )
    assert config.checkpoint_dir == "/data/digits-0a1b2c3d-4e5f"
    assert (config.timeout_s, config.start_timeout_s) == (7, 600)
    assert config.secrets.tls is not None


def test_a_launcher_reads_what_is_built_for_it(tmp_path: Path) -> None:
    """Every setting arrives as the spec says it."""
    config = LauncherConfig.from_env(environment(build.build_launcher_pod(parsed(), 4), tmp_path))
    assert (config.job.name, config.job.attempt, config.workers, config.slots) == ("digits", 4, 3, 2)
    assert (config.port, config.status_port) == (7350, 7351)
    assert config.log_root == Path("/var/log/ringtrain")
    assert config.secrets.tls is not None
    assert not config.writes_report


def test_a_launcher_waits_for_sites_and_ranks_encrypt_between_them(tmp_path: Path) -> None:
    """From spec.networking.sites alone; with encryption said, that counts."""
    pod = build.build_launcher_pod(parsed(networking={"sites": "example.com/room"}), 1)
    assert LauncherConfig.from_env(environment(pod, tmp_path)).site_label == "example.com/room"
    for said, encrypt in ((None, "sites"), ("none", "none"), ("tensors", "tensors")):
        spec = {"sites": "example.com/room", **({"encryption": said} if said else {})}
        pod = build.build_worker_pod(parsed(networking=spec), 1, 0)
        assert AgentConfig.from_env(environment(pod, tmp_path)).encrypt == encrypt


def test_a_launcher_is_told_to_fail_on_nan(tmp_path: Path) -> None:
    """From spec.runPolicy.failOnNaN."""
    pod = build.build_launcher_pod(parsed(runPolicy={"failOnNaN": True}), 1)
    assert LauncherConfig.from_env(environment(pod, tmp_path)).fail_on_nan


def test_an_agent_is_told_the_rule_for_metrics(tmp_path: Path) -> None:
    """From spec.logs.metrics; a kubelet makes `$` of `$$`."""
    rule = r"step (?P<step>\d+)$"
    found = environment(build.build_worker_pod(parsed(logs={"metrics": rule}), 1, 0), tmp_path)
    assert found["RINGTRAIN_METRICS"] == rule.replace("$", "$$")
    config = AgentConfig.from_env(found | {"RINGTRAIN_METRICS": rule})
    assert config.metrics_rule == rule
    with pytest.raises(ConfigurationError, match="RINGTRAIN_METRICS='step' has no named group"):
        AgentConfig.from_env(found | {"RINGTRAIN_METRICS": "step"})


def test_a_launcher_knows_the_image_of_the_workers(tmp_path: Path) -> None:
    """For the page."""
    job = parsed()
    image = job.spec.worker.template["spec"]["containers"][0]["image"]
    assert LauncherConfig.from_env(environment(build.build_launcher_pod(job, 1), tmp_path)).image == image


def test_a_launcher_is_asked_for_a_report(tmp_path: Path) -> None:
    """From spec.logs.report."""
    pod = build.build_launcher_pod(parsed(logs={"report": True}), 1)
    assert LauncherConfig.from_env(environment(pod, tmp_path)).writes_report


def test_both_sides_make_the_same_token_of_the_page(tmp_path: Path) -> None:
    """dtj computes from the launcher's pod what the launcher asks for."""
    pod = build.build_launcher_pod(parsed(), 1)
    config = LauncherConfig.from_env(environment(pod, tmp_path))
    assert PageAccess(config.tokens, "uid").has(pods.page_token(pods.status_token(pod)))


def test_ranks_encrypt_with_what_is_built(tmp_path: Path) -> None:
    """From spec.networking.encryption, through the pod and its agent, to two ranks that share a secret sum."""
    pod = build.build_worker_pod(parsed(networking={"encryption": "tensors"}), 1, 0)
    agent = AgentConfig.from_env(environment(pod, tmp_path))
    addresses = tuple(free_addresses(6))
    world = World(1, addresses, ("t:1",) * 6, "10.0.0.7", 7390)
    found = [WorkerConfig.from_env(rank_environment(agent, world, local, {}, 1)) for local in range(2)]
    assert {config.trust.encrypt for config in found} == {"tensors"}
    two = [changed_config(config, size=2, addresses=addresses[:2], transport="grpc") for config in found]

    def summed(config: WorkerConfig) -> float:
        context = ProcessGroupContext(config, None)
        with context.entered():
            total = float(ringtrain.allreduce(1.0, ringtrain.Sum))
            both.wait(60)
        context.close()
        return total

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(summed, two)) == [2.0, 2.0]


def test_encryption_without_certificates_is_refused(tmp_path: Path) -> None:
    """By the agent, before any rank starts."""
    found = environment(build.build_worker_pod(parsed(networking={"encryption": "tensors"}), 1, 0), tmp_path)
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).unlink()
    with pytest.raises(ConfigurationError, match=r"RINGTRAIN_ENCRYPT=tensors needs ca\.crt, tls\.crt and tls\.key"):
        AgentConfig.from_env(found)


def test_an_mpi_job_arrives_as_the_spec_says_it(tmp_path: Path) -> None:
    """Every field of spec.mpi, and the worker's command behind mpirun where the launcher has none."""
    options = ["--map-by", "node", "-x", "NAME=two words"]
    mpi = {"implementation": "MPICH", "options": options, "requireInit": False, "runLauncherAsWorker": True}
    made = parsed(backend="mpi", mpi=mpi)
    launcher = build.build_launcher_pod(made, 1)
    for folder in ("launcher", "worker"):
        (tmp_path / folder).mkdir()
    variables = environment(launcher, tmp_path / "launcher")
    settings = MpiSettings.from_env(variables)
    assert (settings.implementation, settings.options) == (MpiImplementation.MPICH, tuple(options))
    assert (settings.launcher_as_worker, settings.own_address) == (True, "10.0.0.7")
    words = [*launcher["spec"]["containers"][0]["command"], *launcher["spec"]["containers"][0].get("args", [])]
    assert "mpirun" in words
    agent = AgentConfig.from_env(environment(build.build_worker_pod(made, 1, 0), tmp_path / "worker"))
    assert (agent.backend, agent.launcher_first, settings.needs_init) == ("mpi", True, False)


@pytest.mark.parametrize("name", sorted(name for name in vars(ringtrain_operator.contract) if name.isupper()))
def test_both_sides_have_the_same_constants(name: str) -> None:
    """A name that both sides have means the same on both."""
    ours, theirs = getattr(ringtrain_operator.contract, name), getattr(ringtrain.shared.contract, name, None)
    assert theirs is None or ours == theirs


def test_every_variable_is_in_the_contract() -> None:
    """docs/contract.md names every RINGTRAIN_ variable of the pods that the operator builds."""
    page = (Path(__file__).parents[2] / "docs/contract.md").read_text()
    pods = (build.build_worker_pod(parsed(), 1, 0), build.build_launcher_pod(parsed(), 1))
    names = {variable["name"] for pod in pods for variable in pod["spec"]["containers"][0]["env"]}
    assert {name for name in names if name.startswith("RINGTRAIN_") and f"`{name}`" not in page} == set()


def test_an_evaluator_is_in_a_world_of_one(tmp_path: Path) -> None:
    """By its task in TF_CONFIG; it finds the checkpoints of the ranks."""
    made = build.build_evaluator_pod(parsed(evaluator={}), 3)["spec"]["containers"][0]["env"]
    variables = {one["name"]: one["value"] for one in made if "value" in one}
    config = WorkerConfig.from_env(variables)
    assert (config.role, config.source, config.place.rank, config.place.size) == ("evaluator", "tf_config", 0, 1)
    assert variables["RINGTRAIN_CHECKPOINT_DIR"] == "/data/digits-0a1b2c3d-4e5f"


def test_an_evaluator_of_a_world_of_thousands_starts() -> None:
    """Its variables are none that the kernel refuses, and it is in a world of one as any other."""
    made = build.build_evaluator_pod(parsed(evaluator={}, slotsPerWorker=8), 1024)["spec"]["containers"][0]["env"]
    variables = {one["name"]: one["value"] for one in made if "value" in one}
    subprocess.run([sys.executable, "-c", ""], env=variables, check=True, timeout=patient(60))
    config = WorkerConfig.from_env(variables)
    assert (config.role, config.source, config.place.rank, config.place.size) == ("evaluator", "tf_config", 0, 1)


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (WorkerConfig, {}),
        (AgentConfig, of_agent()),
        (LauncherConfig, variables_of(3)),
        (DataWorkerConfig, {}),
        (DataStreamSettings, {"RINGTRAIN_DATA_WORKERS_FILE": "/workers.json"}),
    ],
)
def test_an_empty_variable_is_one_that_is_not_set(config: Any, needed: dict[str, str]) -> None:
    """Whoever reads it. A token alone may not be empty: a world would ask strangers for none."""
    names = {value for name, value in vars(ringtrain.shared.contract).items() if name.startswith("ENV_")}
    others = names - {ringtrain.shared.contract.ENV_TOKEN}
    assert config.from_env(dict.fromkeys(others, "") | needed) == config.from_env(needed)
    with pytest.raises(ConfigurationError, match="RINGTRAIN_TOKEN is empty"):
        WorkerConfig.from_env({"RINGTRAIN_TOKEN": ""}).trust.token()


def test_a_data_worker_is_what_the_spec_says(tmp_path: Path) -> None:
    """Its place, its loader processes, and where the launcher is, with credentials of its own role."""
    pod = build.build_data_worker_pod(parsed(dataWorkers={"slotsPerWorker": 3}), 2)
    config = DataWorkerConfig.from_env(environment(pod, tmp_path))
    assert (config.index, config.slots, config.uid) == (2, 3, "0a1b2c3d-4e5f")
    assert config.launcher_address == "digits-launcher.digits:7350"
    launched = build.build_launcher_pod(parsed(dataWorkers={"replicas": 4}), 1)
    folder = tmp_path / "launcher"
    folder.mkdir()
    launcher = LauncherConfig.from_env(environment(launched, folder))
    assert (launcher.data_workers, launcher.data_kind) == (4, "ringtrain")
