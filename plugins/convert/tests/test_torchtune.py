"""`dtj convert` on TrainJobs of torchtune's runtimes: the command is Trainer's, and initializers run before it."""

from pathlib import Path
from typing import Any

import pytest
from support.commands import completed
from support.deadlines import patient
from support.source_rules import TUNE, TUNE_REFUSED, TUNE_RUNTIMES

from ringtrain_convert.known_runtimes import known_runtime
from ringtrain_convert.metadata import Converted
from ringtrain_convert.trainjob import convert_trainjob
from ringtrain_operator.errors import Invalid

# The settings of a runtime's command that Trainer retains.
OF_RUNTIME = ["output_dir=/workspace/output", "tokenizer.path=/t", "checkpointer.checkpoint_dir=/workspace/model"]


def converted(name: str, nodes: int, per_node: int | None, gpus: int, arguments: list[str]) -> Converted:
    """A TrainJob with the command `tune run`, and a runtime of this name."""
    trainer: dict[str, Any] = {"command": ["tune", "run"], "args": arguments, "numNodes": nodes}
    trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": gpus} if gpus else {}}
    trainer |= {} if per_node is None else {"numProcPerNode": per_node}
    container = {"name": "node", "image": "i", "command": ["tune", "run", "old", "dataset=x", *OF_RUNTIME]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": {"containers": [container]}}}}}]
    spec = {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": jobs}}}
    job = {"metadata": {"name": "a"}, "spec": {"runtimeRef": {"name": name}, "trainer": trainer}}
    return convert_trainjob(job, {"kind": "ClusterTrainingRuntime", "metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("case", TUNE)
def test_the_command_is_trainers(case: str, tmp_path: Path) -> None:
    """Each node runs torchtune once, with Trainer's recipe, configuration and settings, and torchrun's variables."""
    of_job, (rendezvous, recipe, config) = TUNE[case]
    spec = converted(*of_job).manifest["spec"]
    assert (spec["worker"]["replicas"], spec["slotsPerWorker"]) == (of_job[1], 1)
    tune = tmp_path / "tune"
    tune.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE"\n')
    tune.chmod(0o755)
    agent = {"RANK": "0", "WORLD_SIZE": str(of_job[1]), "MASTER_ADDR": "head", "MASTER_PORT": "29400"}
    done = completed(
        spec["worker"]["template"]["spec"]["containers"][0]["command"],
        env={**agent, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        timeout=patient(30),
    )
    *words, variables = done.stdout.splitlines()
    start = ["run", *(["--rdzv_endpoint=head:29400"] if rendezvous else [])]
    assert words == [*start, recipe, "--config", config, *OF_RUNTIME, *of_job[4]]
    assert variables == f"{of_job[1]} 0 {of_job[2] or of_job[3]}"


@pytest.mark.parametrize("case", TUNE_REFUSED)
def test_what_trainer_refuses(case: str) -> None:
    """The error names the field that Trainer's webhook names."""
    of_job, path = TUNE_REFUSED[case]
    with pytest.raises(Invalid) as refused:
        converted(*of_job)
    assert path in [problem.path for problem in refused.value.problems]


@pytest.mark.parametrize("name", TUNE_RUNTIMES)
def test_runtimes_of_trainer(name: str) -> None:
    """Initializers with the job's sources run on the claim before the command, which is the runtime's if the job has
    none."""
    hub, tokenizer = TUNE_RUNTIMES[name]
    runtime = known_runtime("ClusterTrainingRuntime", name)
    assert runtime is not None
    data = {"storageUri": "hf://a/b", "env": [{"name": "HF_HUB_OFFLINE", "value": "0"}], "secretRef": {"name": "key"}}
    job = {
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"runtimeRef": {"name": name}, "initializer": {"dataset": data}},
    }
    made = convert_trainjob(job, runtime)
    spec = made.manifest["spec"]
    pod = spec["worker"]["template"]["spec"]
    [node] = pod["containers"]
    images = [one["image"] for one in (*pod["initContainers"], node)]
    assert images == [
        f"ghcr.io/kubeflow/trainer/{name}:v2.3.0"
        for name in ("dataset-initializer", "model-initializer", "torchtune-trainer")
    ]
    assert [one["volumeMounts"] for one in (*pod["initContainers"], node)] == [
        [{"name": "initializer", "mountPath": "/workspace"}]
    ] * 3
    dataset, model = pod["initContainers"]
    assert dataset["env"] == [{"name": "STORAGE_URI", "value": "hf://a/b"}, *data["env"]]  # type: ignore[misc]
    assert dataset["envFrom"] == [{"secretRef": {"name": "key"}}]
    assert (model["env"], "envFrom" in model) == ([{"name": "STORAGE_URI", "value": f"hf://{hub}"}], False)
    assert pod["volumes"] == [{"name": "initializer", "persistentVolumeClaim": {"claimName": "initializer-a"}}]
    [claim] = made.others
    assert (claim["kind"], claim["metadata"]) == (
        "PersistentVolumeClaim",
        {"name": "initializer-a", "namespace": "team"},
    )
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    assert (spec["worker"]["devices"], spec["slotsPerWorker"]) == ({"nvidia.com/gpu": 2}, 1)
    assert node["command"][4:7] == ["tune", "run", "--rdzv_endpoint=localhost:29500"]
    settings = ["output_dir=/workspace/output", *tokenizer, "checkpointer.checkpoint_dir=/workspace/model"]
    assert node["command"][-len(settings) :] == settings
