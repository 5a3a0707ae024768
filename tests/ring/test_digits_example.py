"""The example that every new user runs first: alone, in two terminals, interrupted, and on MNIST's files."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.commands import completed
from support.deadlines import patient
from support.ports import free_addresses

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
DEADLINE_S = patient(240.0)


def _start(*options: str, **environment: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTRAIN_", "TF_CONFIG"))}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *options],
        env=quiet | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output


def _found(pattern: str, output: str) -> str:
    match = re.search(pattern, output, re.MULTILINE)
    assert match, output
    return match[1]


def test_one_process_learns_the_digits_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """96 % on unseen digits; a run that goes on from half-way ends with the bits of the uninterrupted one."""
    options = ("--epochs", "20", "--checkpoint-every", "10")
    whole = _output(_start(*options, RINGTRAIN_CHECKPOINT_DIR=str(tmp_path)))
    assert float(_found(r"^test accuracy: (0\.\d+)$", whole)) >= 0.96
    (tmp_path / "attempt-0001" / "ckpt-0000000020.npz").unlink()
    resumed = _output(_start(*options, RINGTRAIN_CHECKPOINT_DIR=str(tmp_path)))
    assert "ckpt-0000000010.npz after 10 epochs" in resumed
    weights = r"^weights sha256: (\w+)$"
    assert _found(weights, resumed) == _found(weights, whole)


def test_data_workers_give_the_same_bits(tmp_path: Path) -> None:
    """Trained weights are the same whether data workers or ranks load the batches."""
    words = ["-m", "ringtrain", "run", "-np", "1", "--log-dir", str(tmp_path), "--data-workers", "1"]
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTRAIN_", "TF_CONFIG"))}
    run = completed(
        [sys.executable, *words, sys.executable, str(SCRIPT), "--on-data-workers", "--epochs", "3"],
        env=quiet | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    own = _output(_start("--epochs", "3"))
    assert _found(r"weights sha256: (\w+)$", run.stdout) == _found(r"^weights sha256: (\w+)$", own)


def test_two_terminals_with_tf_config_train_together() -> None:
    """Two tasks of one TF_CONFIG: the global batch is both batches, only rank 0 tells of it, both end well."""
    workers = free_addresses(2)
    tasks = [
        _start(
            "--epochs",
            "4",
            "--optimizer",
            "lamb",
            TF_CONFIG=json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}}),
        )
        for index in range(2)
    ]
    chief, other = [_output(task) for task in tasks]
    assert "global batch: 64 = 32 per rank x 2 ranks; 1437 samples" in chief
    assert float(_found(r"^test accuracy: (0\.\d+)$", chief)) > 0.8
    assert "epoch" not in other


def test_mnist_is_read_from_a_directory(tmp_path: Path) -> None:
    """`--data-dir` trains on IDX files; a missing one is named."""
    random = np.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 32)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = np.broadcast_to(labels[:, None, None] * 25, (count, 28, 28)).astype(np.uint8)
        for name, array in (("images", images), ("labels", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{part}-{name}-idx{array.ndim}-ubyte").write_bytes(header + array.tobytes())
    assert "64 samples, 2 steps an epoch" in _output(_start("--data-dir", str(tmp_path), "--epochs", "2"))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with _start("--data-dir", str(tmp_path)) as failing:
        output, _ = failing.communicate(timeout=DEADLINE_S)
    assert failing.returncode == 1
    assert "none of t10k-labels-idx1-ubyte, t10k-labels-idx1-ubyte.gz" in output


def test_an_elastic_run_learns_the_digits(tmp_path: Path) -> None:
    """The elastic example under `ringtrain run`: two ranks, 96 % on unseen digits."""
    script = SCRIPT.with_name("train_elastic.py")
    run = [sys.executable, "-m", "ringtrain", "run", "-np", "2", "--min-np", "1", "--max-np", "2"]
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTRAIN_", "TF_CONFIG"))}
    ended = completed(
        [*run, "--log-dir", str(tmp_path), sys.executable, str(script), "--epochs", "20"],
        env=quiet | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert float(_found(r"test accuracy: (0\.\d+)$", ended.stdout)) >= 0.96
    assert "2 ranks go on with epoch 0" in ended.stdout
