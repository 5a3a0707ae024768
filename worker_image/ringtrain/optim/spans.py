"""Spans: the parameters, or parts of them, that a rank updates in a bucket; the rules and gradients of these
parameters.

No gradient is not a gradient of zeros: a parameter for which no rank has a gradient does not change, and neither does
its state. Ranks agree on that without additional messages. -0 is the neutral element of addition: a rank without a
gradient contributes -0, and a sum is -0 only if all contribute -0. A gradient that is present never has -0 at the first
element of a rank's part of the parameter (`GradientInbox` replaces it by 0), so a rank reads that one element of the
sum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ringtrain._core.kernels.structures import SPAN, STAYS
from ringtrain._core.kernels.update import NativeRule
from ringtrain._core.process_groups.group import Flat
from ringtrain.optim.compiled import RULE_CODES, native_terms
from ringtrain.optim.kernels import OptimizerKernels, OwnedBucketPart
from ringtrain.optim.layout import Bucket, Layout, ParamLocation, ParamSpec
from ringtrain.optim.rules import FusableUpdateRule, LayerUpdateRule, Rule, StepValues

ABSENT: Final = -0.0
_UNDONE: Final = 2  # number of updates that can be undone


def spans_of(bucket: Bucket, owned: slice) -> tuple[ParamLocation, ...]:
    """Return the parameters in the elements `owned` of `bucket`, with offsets relative to the first element."""
    found = []
    for location in bucket.locations:
        low, high = max(location.start, owned.start), min(location.stop, owned.stop)
        if low < high:
            found.append(ParamLocation(location.spec, low - owned.start, high - owned.start))
    return tuple(found)


def parameter_beginnings(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return, for each parameter, the offsets at which the ranks' parts of it begin."""
    found = {}
    for bucket in layout.buckets:
        for location in bucket.locations:
            cuts = {bound - location.start for bound in bucket.bounds if location.start < bound < location.stop}
            found[location.spec.name] = (0, *sorted(cuts)) if location.spec.size else ()
    return found


def is_gradient_absent(values: Flat) -> bool:
    """Return whether no rank has a gradient. `values`: gradient summed over ranks, from the start of a rank's
    part on."""
    first = float(values[0])
    return first == 0 and bool(np.signbit(first))


class MissedGradients:
    """Number of updates, for each parameter, in which no rank had a gradient of it.

    A rank counts the parameters of which it updates elements.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._noted: dict[int, set[str]] = {}

    def note(self, number: int, name: str) -> None:
        """Record that no rank had a gradient of `name` in update `number`."""
        noted = self._noted.setdefault(number, set())
        if name not in noted:
            noted.add(name)
            self.counts[name] = self.counts.get(name, 0) + 1
        self._noted.pop(number - _UNDONE, None)

    def undo(self, to: int) -> None:
        """Delete the records of updates after `to`, which were undone."""
        for number in [number for number in self._noted if number > to]:
            for name in self._noted.pop(number):
                self.counts[name] -= 1

    def of(self, name: str) -> int:
        """Return the number of updates in which no rank had a gradient of `name`."""
        return self.counts.get(name, 0)


@dataclass(frozen=True)
class StepRules:
    """Rules with which update `number` changes the parameters.

    `rules`: one for each group of parameters. `group_of`: the index of each parameter's group, by name. `factor`:
    factor of the schedule on each rule's learning rate.
    """

    number: int
    factor: float
    rules: tuple[Rule, ...]
    group_of: Mapping[str, int]

    def rule(self, spec: ParamSpec) -> Rule:
        """Return the rule of a parameter."""
        return self.rules[self.group_of[spec.name]]

    def values(self, spec: ParamSpec, missed: MissedGradients, scale: float) -> StepValues:
        """Return the rule's arguments for the parameter `spec`. Updates without its gradient are not counted.

        `scale`: factor that converts the sum over ranks to the clipped mean gradient.
        """
        return StepValues(self.number - missed.of(spec.name), self.rule(spec).lr * self.factor, scale)

    def apply(
        self,
        part: OwnedBucketPart,
        spans: Sequence[ParamLocation],
        missed: MissedGradients,
        scale: float,
        kernels: OptimizerKernels,
    ) -> list[ParamLocation]:
        """Update the weights and the state of `part`, which has the parameters `spans`; return those that had a
        gradient.

        `scale`: factor that converts the sum over ranks to the clipped mean gradient. For a `LayerUpdateRule`, update
        only the state and write directions to the gradients.
        """
        present = []
        for span in spans:
            if is_gradient_absent(part.gradients[span.start : span.stop]):
                missed.note(self.number, span.spec.name)
            else:
                present.append(span)
        for run in self._runs(present, missed):
            rule = self.rule(run[0].spec)
            cut = part.cut(slice(run[0].start, run[-1].stop), run[0].spec if updates_by_parameter(rule) else None)
            change: Callable[..., None] = rule.direction if isinstance(rule, LayerUpdateRule) else rule.update
            change(cut, self.values(run[0].spec, missed, scale), kernels)
        return present

    def _runs(self, spans: Sequence[ParamLocation], missed: MissedGradients) -> Iterator[list[ParamLocation]]:
        """Yield groups of adjacent parameters that one kernel call can update."""
        run: list[ParamLocation] = []
        for span in spans:
            if run and not (
                run[-1].stop == span.start
                and self.group_of[run[-1].spec.name] == self.group_of[span.spec.name]
                and missed.of(run[-1].spec.name) == missed.of(span.spec.name)
                and not updates_by_parameter(self.rule(span.spec))
            ):
                yield run
                run = []
            run.append(span)
        if run:
            yield run


def updates_by_parameter(rule: Rule) -> bool:
    """Return whether `rule` must be called for one parameter at a time."""
    return bool(getattr(rule, "by_parameter", False))


class NativeParameterSpans:
    """Parameters, or parts of them, that this rank updates in one bucket, in the form that compiled code reads."""

    def __init__(self, spans: Sequence[ParamLocation], group_of: Mapping[str, int]) -> None:
        self._spans = spans
        self._array = np.zeros(max(1, len(spans)), SPAN)
        self._array["end"][: len(spans)] = [span.stop for span in spans]
        self._groups = [group_of[span.spec.name] for span in spans]

    def rule(self, step: StepRules, missed: MissedGradients, scale: float) -> NativeRule:
        """Return the rules of update `step` in the form that compiled code reads. That code skips absent gradients."""
        made = {}
        for span, group in zip(self._spans, self._groups, strict=True):
            key = group, missed.of(span.spec.name)
            if key not in made:
                rule = step.rules[group]
                assert isinstance(rule, FusableUpdateRule), "call can_fuse first"
                made[key] = native_terms(rule.terms(step.values(span.spec, missed, scale)))
        address = {key: terms.address for key, terms in made.items()}
        missed_of = missed.of
        self._array["terms"][: len(self._spans)] = [
            address[group, missed_of(span.spec.name)] for span, group in zip(self._spans, self._groups, strict=True)
        ]
        self._array["fate"] = 0
        code = RULE_CODES[type(next(iter(made.values())).struct)] if made else 1
        return NativeRule(code, self._array, [terms.struct for terms in made.values()])

    def note(self, number: int, missed: MissedGradients) -> None:
        """Record, for the parameters that update `number` skipped, that no rank had a gradient."""
        for index in np.flatnonzero(self._array["fate"] == STAYS).tolist():
            missed.note(number, self._spans[index].spec.name)
