"""The examples run as their first lines say, as jobs too, learn, and go on from where a run before them ended."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from frameworks.warm_python import shared_python
from support.commands import completed
from support.deadlines import patient
from support.ports import free_addresses

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
SAMPLES = ROOT / "manifests" / "samples"
DEADLINE_S = patient(300.0)
ENV = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def python_of(script: str) -> str:
    """Return a `python` for a script, whose name begins with its framework's: it has imported that."""
    name = re.split("[-_]", script)[0]
    return shared_python("keras" if name in ("tensorflow", "estimator") else name)


def run(command: list[str], **env: str) -> str:
    done = completed(command, env={**ENV, **env}, cwd=ROOT, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def two_ranks(script: str, *arguments: str, tmp_path: Path, **env: str) -> str:
    runner = ["ringtrain", "run", "-np", "2", "--log-dir", str(tmp_path / "logs")]
    return run([*runner, python_of(script), str(EXAMPLES / script), *arguments], **env)


def as_job(sample: str, *arguments: str, tmp_path: Path, run_name: str = "run", restore_from: str = "") -> str:
    """Run the sample as it is, but for its `python`, `arguments` to its script and a claim for its checkpoints.

    Return the log of its only attempt.
    """
    job = yaml.safe_load((SAMPLES / f"{sample}.yaml").read_text())
    command = job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"]
    command[:] = [python_of(sample), *command[1:], *arguments]
    job["spec"]["checkpoint"] = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
    if restore_from:
        job["spec"]["checkpoint"]["restoreFrom"] = restore_from
    job["metadata"]["name"] = run_name
    path = tmp_path / f"{run_name}.yaml"
    path.write_text(yaml.safe_dump(job))
    run(["dtj", "local", str(path), "--run-dir", str(tmp_path)])
    logs = {log.parent.name: log.read_text() for log in tmp_path.glob(f"{run_name}-*/**/job.log")}
    assert list(logs) == ["1"], logs
    return logs["1"]


def score(output: str) -> float:
    return float(re.search(r"test accuracy: ([\d.]+)", output)[1])


@pytest.mark.parametrize("job", ["torch-mnist", "torch-ddp", "tensorflow-mnist", "keras-mnist", "jax-mnist"])
def test_digits_as_a_job_evaluates_learns_and_resumes(job, tmp_path):
    """The second job, which says so, goes on where the first one ended, from what rank 0 saved."""
    first = as_job(job, "--epochs", "2", tmp_path=tmp_path, run_name="first")
    second = as_job(job, "--epochs", "4", tmp_path=tmp_path, run_name="second", restore_from="first")
    evaluated = re.compile(r"epoch (\d+)/\d+ .*accuracy [\d.]+|Epoch (\d+)/\d+", re.IGNORECASE)
    epochs = [[int(a or b) for a, b in evaluated.findall(log)] for log in (first, second)]
    assert epochs == [[1, 2], [3, 4]]
    assert job != "keras-mnist" or len(re.findall(r"val_accuracy: [\d.]+", first + second)) == 4
    assert re.search(r"resumed from \S+ after 2\b", second)
    assert score(first) < score(second)
    assert score(second) > 0.8


@pytest.mark.parametrize("way", ["run", "job"])
def test_jax_by_itself(way, tmp_path):
    """Over the collectives that JAX has; its processes have found each other."""
    if way == "run":
        log = two_ranks("jax_distributed.py", tmp_path=tmp_path)
    else:
        log = as_job("jax-distributed", tmp_path=tmp_path)
    assert sorted(re.findall(r"process . of 2: loss 0\.\d+", log)) == [
        f"process {index} of 2: loss 0.0000" for index in range(2)
    ]


def test_keras_mnist_in_two_terminals():
    """With nothing but TF_CONFIG."""
    workers = free_addresses(2)
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        command = [python_of("keras"), str(EXAMPLES / "keras_mnist.py"), "--epochs", "4"]
        env = {**ENV, "TF_CONFIG": json.dumps(config)}
        processes.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0]
    assert score(outputs[0]) > 0.85
    assert "test accuracy" not in outputs[1]


def test_an_estimator_in_two_terminals_goes_on_under_mpirun(tmp_path):
    """By TF_CONFIG alone, and mpirun's variables alone; it logs as TensorFlow did, and resumes from model_dir."""
    command = [python_of("estimator"), str(EXAMPLES / "estimator_mnist.py"), "--model-dir", str(tmp_path / "model")]
    workers = free_addresses(2)
    outputs = []
    with ExitStack() as stack:
        for index in range(2):
            config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
            words = [*command, "--steps", "60"]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            outputs.append(subprocess.Popen(words, env={**ENV, "TF_CONFIG": config}, cwd=ROOT, **streams))
            stack.callback(outputs[-1].wait)
            stack.callback(outputs[-1].kill)
        first, second = (process.communicate(timeout=DEADLINE_S)[0] for process in outputs)
        assert [process.returncode for process in outputs] == [0, 0], first + second
    assert re.search(r"loss = [\d.]+, step = 20 \([\d.]+ sec\)", first), first
    assert "step = 20" not in second
    assert score(first) > 0.7
    if not shutil.which("mpirun"):
        pytest.skip("the second half needs mpirun (apt install openmpi-bin)")
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    mpirun = ["mpirun", "-np", "2", "-H", "localhost:2", "--bind-to", "none", *command, "--steps", "100"]
    done = completed(mpirun, env={**ENV, **as_root}, cwd=ROOT, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step = 60" in done.stderr
    assert score(done.stdout) > score(first)


def test_language_model_as_a_job_evaluates_learns_and_resumes(tmp_path):
    """Better than guessing among all characters."""
    every = ["--every", "20"]
    as_job("torch-lm", "--steps", "40", *every, tmp_path=tmp_path, run_name="first")
    log = as_job("torch-lm", "--steps", "60", *every, tmp_path=tmp_path, run_name="second", restore_from="first")
    assert re.search(r"resumed from \S+ after 40\b", log)
    assert re.findall(r"step (\d+)/60  loss [\d.]+  perplexity [\d.]+", log) == ["60"]
    perplexity, characters = re.search(r"perplexity: ([\d.]+) over (\d+)", log).groups()
    assert float(perplexity) < int(characters) / 3


def test_diloco_learns_over_a_few_exchanges(tmp_path):
    """Better than guessing; two fragments every 20 steps, and what is left of them at the end."""
    pytest.importorskip("ringtrain_diloco")
    output = two_ranks("torch_diloco.py", "--steps", "60", "--compression", "int8", tmp_path=tmp_path)
    found = re.search(r"perplexity: ([\d.]+) over (\d+) characters, after (\d+) exchanges of \d+ kB", output)
    perplexity, characters, exchanges = found.groups()
    assert float(perplexity) < int(characters) / 3
    assert exchanges == "7"


SMALL = ["--model", "resnet14", "--width", "8", "--image-size", "32", "--iterations", "2"]
TOTAL = r"total images/sec on 2 ranks: [\d.]+"


def test_resnet_benchmark_as_a_job(tmp_path):
    assert re.search(TOTAL, as_job("torch-resnet", *SMALL, "--batch-size=2", tmp_path=tmp_path))


def test_resnet_benchmark_with_the_optimizer_on_the_host(tmp_path):
    assert re.search(TOTAL, two_ranks("torch_resnet.py", *SMALL, "--host-optimizer", tmp_path=tmp_path))


def test_resnet_50_has_its_161_tensors():
    """As many parameters as the paper's, with torchvision's count of trained numbers."""
    program = (
        "from torch_resnet import resnet, STAGES; p = list(resnet(STAGES['resnet50'], 64, 1000).parameters()); "
        "print(len(p), sum(x.numel() for x in p))"
    )
    assert run([python_of("torch"), "-c", program], PYTHONPATH=str(EXAMPLES)).split() == ["161", "25557032"]


@pytest.mark.parametrize("script", [*sorted(path.name for path in EXAMPLES.glob("t*_*.py")), "keras_mnist.py"])
def test_each_example_is_a_sample(script):
    """A job runs it."""
    name = script.removesuffix(".py").replace("_", "-")
    job = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    command = job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["python", f"examples/frameworks/{script}"]
