"""Command lines of programs that replay histories from seeds."""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text: a number of seeds from 0 on, or first-last."""
    first, _, last = text.rpartition("-")
    return list(range(int(first), int(last) + 1)) if first else list(range(int(last)))


def given_seeds(without: str) -> tuple[list[int], int]:
    """Return the seeds of the command line, by default those of `without`, and the number of parallel jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="?", default=without, help="how many from 0 on, or first-last")
    parser.add_argument("--seed", type=int, help="one, alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many jobs run at a time")
    given = parser.parse_args()
    return seeds_of(given.seeds) if given.seed is None else [given.seed], given.jobs


def play_histories(
    without: str, judge: Callable[[int], str], told: Callable[[int], str] = lambda seed: "played"
) -> None:
    """Replay the seeds' histories and exit with the number of bad ones. `judge`: problems; `told`: description."""

    def timed(seed: int) -> tuple[int, str, float]:
        began = time.monotonic()
        return seed, judge(seed), time.monotonic() - began

    seeds, jobs = given_seeds(without)
    bad = 0
    with ThreadPoolExecutor(jobs) as pool:
        for seed, text, seconds in pool.map(timed, seeds):
            bad += bool(text)
            print(f"seed {seed}: {told(seed)}, {seconds:.0f} s: {text or 'right'}", flush=True)
    print(f"{len(seeds)} histories, {bad} of them bad")
    sys.exit(min(bad, 1))
