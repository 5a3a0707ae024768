"""Rules of a shard's parameters in the form that compiled code reads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringtrain._core.kernels.structures import STAYS
from ringtrain.optim import SGD, Adam
from ringtrain.optim.compiled import RULE_CODES
from ringtrain.optim.layout import ParamLocation, ParamSpec
from ringtrain.optim.spans import MissedGradients, NativeParameterSpans, StepRules

GROUPS = {"a": 0, "b": 0, "c": 0, "d": 1}


def _spans(names: str) -> list[ParamLocation]:
    """Parameters of 3 elements each, one after the other."""
    return [
        ParamLocation(ParamSpec(name, (3,), np.dtype(np.float32)), 3 * at, 3 * at + 3) for at, name in enumerate(names)
    ]


@pytest.mark.parametrize("rule", [SGD(0.5), Adam(0.5)], ids=["sgd", "adam"])
def test_compiled_code_gets_the_coefficients_of_each_parameter(rule: Any) -> None:
    """Parameters share them if their group is the same and they missed equally many gradients."""
    missed = MissedGradients()
    missed.note(1, "b")
    step = StepRules(2, 1.0, (rule, replace(rule, lr=0.25)), GROUPS)
    native = NativeParameterSpans(_spans("abcd"), GROUPS).rule(step, missed, 1.0)
    assert native.spans["end"].tolist() == [3, 6, 9, 12]
    a, b, c, d = native.spans["terms"].tolist()
    assert a == c
    assert len({a, b, d}) == len(native.terms) == 3
    assert {RULE_CODES[type(terms)] for terms in native.terms} == {native.code}


def test_a_shard_without_elements_has_a_rule_without_coefficients() -> None:
    """As a rank has of a bucket that is shorter than one cut per rank. Compiled code then has one empty span."""
    native = NativeParameterSpans([], GROUPS).rule(StepRules(1, 1.0, (Adam(),), GROUPS), MissedGradients(), 1.0)
    assert (native.terms, native.spans["end"].tolist()) == ([], [0])


def test_parameters_that_compiled_code_skipped_have_missed_a_gradient() -> None:
    """They are counted once, however often their update is repeated."""
    missed, step = MissedGradients(), StepRules(4, 1.0, (SGD(0.5),), GROUPS)
    spans = NativeParameterSpans(_spans("abc"), GROUPS)
    native = spans.rule(step, missed, 1.0)
    assert not native.spans["fate"].any()
    native.spans["fate"][1] = STAYS
    spans.note(4, missed)
    spans.note(4, missed)
    assert missed.counts == {"b": 1}
