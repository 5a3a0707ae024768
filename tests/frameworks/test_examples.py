"""The examples run as their first lines say, and learn."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.ports import free_addresses

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
SAMPLES = ROOT / "manifests" / "samples"
DEADLINE_S = 300.0
ENV = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def run(command: list[str], **env: str) -> str:
    done = subprocess.run(
        command, env={**ENV, **env}, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def two_ranks(script: str, *arguments: str, tmp_path: Path, **env: str) -> str:
    runner = ["ringtrain", "run", "-np", "2", "-H", "localhost:2", "--log-dir", str(tmp_path / "logs")]
    return run([*runner, sys.executable, str(EXAMPLES / script), *arguments], **env)


def score(output: str) -> float:
    return float(re.search(r"test accuracy: ([\d.]+)", output)[1])


def test_torch_mnist_learns_and_resumes(tmp_path):
    """The second run goes on where the first one ended."""
    checkpoint = ["--checkpoint", str(tmp_path / "model.pt")]
    two_ranks("torch_mnist.py", "--epochs", "2", *checkpoint, tmp_path=tmp_path)
    output = two_ranks("torch_mnist.py", "--epochs", "6", *checkpoint, tmp_path=tmp_path)
    assert "after 2 epochs" in output
    assert "epoch 2/6" not in output
    assert score(output) > 0.9


def test_keras_mnist_in_two_terminals():
    """With nothing but TF_CONFIG."""
    workers = free_addresses(2)
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, str(EXAMPLES / "keras_mnist.py"), "--epochs", "4"]
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


def test_tensorflow_mnist_resumes_from_the_jobs_checkpoint(tmp_path):
    directory = {"RINGTRAIN_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    two_ranks("tensorflow_mnist.py", "--epochs", "2", tmp_path=tmp_path, **directory)
    output = two_ranks("tensorflow_mnist.py", "--epochs", "5", tmp_path=tmp_path, **directory)
    assert "after 2 epochs" in output
    assert score(output) > 0.9


def test_language_model(tmp_path):
    """Better than guessing among all characters."""
    output = two_ranks("torch_lm.py", "--steps", "60", tmp_path=tmp_path)
    perplexity, characters = re.search(r"perplexity: ([\d.]+) over (\d+)", output).groups()
    assert float(perplexity) < int(characters) / 3


@pytest.mark.parametrize("optimizer", ["--batch-size=2", "--host-optimizer"], ids=["torch", "host"])
def test_resnet_benchmark(optimizer, tmp_path):
    small = ["--model", "resnet14", "--width", "8", "--image-size", "32", "--iterations", "2", optimizer]
    assert re.search(
        r"total images/sec on 2 ranks: [\d.]+", two_ranks("torch_resnet.py", *small, tmp_path=tmp_path)
    )


def test_plain_ddp_as_a_job(tmp_path):
    """The sample as it is, but for the number of epochs: PyTorch finds its world in the agent's environment."""
    job = yaml.safe_load((SAMPLES / "torch-ddp.yaml").read_text())
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] += ["--epochs", "4"]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    run(["dtj", "local", str(path), "--run-dir", str(tmp_path / "runs")])
    (log,) = (tmp_path / "runs").glob("**/job.log")
    assert score(log.read_text()) > 0.9


@pytest.mark.parametrize("script", [*sorted(path.name for path in EXAMPLES.glob("t*_*.py")), "keras_mnist.py"])
def test_each_example_is_a_sample(script):
    """A job runs it."""
    name = script.removesuffix(".py").replace("_", "-")
    job = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    command = job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["python", f"examples/frameworks/{script}"]
