"""A test on a slow machine waits longer, and all processes of a run wait equally long."""

import os
import sys
from pathlib import Path

from support.commands import completed
from support.deadlines import MOST, PACE, VARIABLE, patient

ASKED = "from support.deadlines import patient; print(patient(60))"


def test_a_process_takes_the_word_of_the_one_that_started_it() -> None:
    """And without one it measures; never less than on the reference machine, and with a bound."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-c", ASKED]
    assert float(completed(words, env={**env, VARIABLE: "2.5"}).stdout) == 150
    assert float(completed(words, env=env).stdout) == patient(60) == 60 * PACE
    del env[VARIABLE]
    assert 60 <= float(completed(words, env=env).stdout) <= 60 * MOST
