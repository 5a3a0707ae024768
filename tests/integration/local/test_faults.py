"""The digits job under a random fault: it succeeds, with the weights of a run that nothing has disturbed.

To replay one seed: RINGTRAIN_TEST_SEEDS=17 pytest tests/integration/local/test_faults.py
"""

import functools
import os
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import completed
from support.local import DEADLINE_S, Start

SEEDS = [int(seed) for seed in os.environ.get("RINGTRAIN_TEST_SEEDS", "").split(",") if seed] or list(range(3))
EPOCHS = 4
OPTIONS = ("--epochs", str(EPOCHS), "--checkpoint-every", "1")
DIGITS = str(Path(__file__).parents[3] / "examples" / "digits" / "train.py")
FAULTY = str(Path(__file__).parent / "faulty_digits.py")
WEIGHTS = re.compile(r"weights sha256: (\w+)")


@dataclass(frozen=True)
class JobFault:
    """`signal` strikes `victim` (a rank, or the agent that started it) when `rank` reports `step`."""

    workers: int
    slots: int
    victim: str
    signal: str
    rank: int
    step: int

    @classmethod
    def of_seed(cls, seed: int) -> "JobFault":
        """A fault that only depends on `seed`; three in a row are of each kind. Step 0 is before ranks meet."""
        chosen = random.Random(seed)
        victim, number = (("rank", "SIGKILL"), ("rank", "SIGSTOP"), ("agent", "SIGKILL"))[seed % 3]
        workers, slots = chosen.choice([(2, 1), (1, 2), (2, 2)])
        steps = EPOCHS * -(-1437 // (32 * workers * slots))  # images, and how many of them a rank takes a step
        return cls(workers, slots, victim, number, chosen.randrange(workers * slots), chosen.randrange(steps))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The weights of a run of so many ranks without faults."""

    @functools.cache
    def weights(ranks: int) -> str:
        logs = str(tmp_path_factory.mktemp("undisturbed"))
        command = [sys.executable, "-m", "ringtrain", "run", "-np", str(ranks), "--log-dir", logs]
        run = completed([*command, sys.executable, DIGITS, *OPTIONS], timeout=DEADLINE_S)
        (found,) = WEIGHTS.findall(run.stdout)
        return str(found)

    return weights


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_weights_whatever_happens(start: Start, undisturbed: Callable[[int], str], seed: int) -> None:
    """Whoever dies or hangs, and when: the gang goes on from its checkpoint and ends with the same bits."""
    fault = JobFault.of_seed(seed)
    print(f"seed {seed}: {fault}")
    local = start(
        *("python", FAULTY, fault.victim, fault.signal, str(fault.rank), str(fault.step), *OPTIONS),
        workers=fault.workers,
        slotsPerWorker=fault.slots,
        checkpoint={"persistentVolumeClaim": {"claimName": "digits"}},
        networking={"timeoutSeconds": 5},
        runPolicy={"backoffLimit": 8},  # on a machine that is busy a rank may come too late
    )
    output = local.finish(0)
    attempts = re.search(r"(\d+) attempts", output)
    assert attempts is not None, f"the fault did not strike: {output}"
    assert WEIGHTS.findall(local.log(int(attempts.group(1)))) == [undisturbed(fault.workers * fault.slots)]
