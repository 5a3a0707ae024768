"""Parameters one by one, within the elements of a bucket that a rank updates: which rule, and whether at all.

No gradient is not a gradient of zeros: a parameter that no rank has a gradient of stays as it is, and so does its
state. Ranks agree on that with what they send anyway. -0 is what an addition starts from: a rank without a
gradient contributes nothing but -0, and a sum is -0 only where all have. A gradient that is there never has -0
where a rank's elements of its parameter begin (`GradientInbox` makes it 0), so a rank looks at that one element of the
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
_UNDONE: Final = 2  # so many updates can be given up


def spans_of(bucket: Bucket, owned: slice) -> tuple[ParamLocation, ...]:
    """The parameters of the elements `owned` of `bucket`, counted from their start."""
    found = []
    for location in bucket.locations:
        low, high = max(location.start, owned.start), min(location.stop, owned.stop)
        if low < high:
            found.append(ParamLocation(location.spec, low - owned.start, high - owned.start))
    return tuple(found)


def parameter_beginnings(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Where, counted from each parameter's start, a rank's elements of it begin."""
    found = {}
    for bucket in layout.buckets:
        for location in bucket.locations:
            cuts = {bound - location.start for bound in bucket.bounds if location.start < bound < location.stop}
            found[location.spec.name] = (0, *sorted(cuts)) if location.spec.size else ()
    return found


def is_gradient_absent(values: Flat) -> bool:
    """Whether no rank has the gradient whose sum over ranks is `values`, from where a rank's elements begin."""
    first = float(values[0])
    return first == 0 and bool(np.signbit(first))


class MissedGradients:
    """In how many updates no rank had a gradient of a parameter: so many it is behind the others.

    A rank counts the parameters of which it updates elements.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = dict(counts or {})
        self._noted: dict[int, set[str]] = {}

    def note(self, number: int, name: str) -> None:
        """Nobody had a gradient of `name` in update `number`."""
        noted = self._noted.setdefault(number, set())
        if name not in noted:
            noted.add(name)
            self.counts[name] = self.counts.get(name, 0) + 1
        self._noted.pop(number - _UNDONE, None)

    def undo(self, to: int) -> None:
        """Forget what was noted in updates after `to`."""
        for number in [number for number in self._noted if number > to]:
            for name in self._noted.pop(number):
                self.counts[name] -= 1

    def of(self, name: str) -> int:
        """How many updates `name` has missed."""
        return self.counts.get(name, 0)


@dataclass(frozen=True)
class StepRules:
    """How update `number` changes parameters. `rules`: one for each group of parameters; `group_of`: by name.
    `factor`: on each rule's learning rate, of the schedule.
    """

    number: int
    factor: float
    rules: tuple[Rule, ...]
    group_of: Mapping[str, int]

    def rule(self, spec: ParamSpec) -> Rule:
        """The rule of a parameter."""
        return self.rules[self.group_of[spec.name]]

    def values(self, spec: ParamSpec, missed: MissedGradients, scale: float) -> StepValues:
        """What the rule must know: the parameter's own number of updates, and its rate."""
        return StepValues(self.number - missed.of(spec.name), self.rule(spec).lr * self.factor, scale)

    def apply(
        self,
        part: OwnedBucketPart,
        spans: Sequence[ParamLocation],
        missed: MissedGradients,
        scale: float,
        kernels: OptimizerKernels,
    ) -> list[ParamLocation]:
        """Change the weights and the state of `part`; of a `LayerUpdateRule` its state alone, and put directions
        into the place of its gradients. Return the spans that had a gradient.
        """
        present = []
        for span in spans:
            if is_gradient_absent(part.gradients[span.start : span.stop]):
                missed.note(self.number, span.spec.name)
            else:
                present.append(span)
        for run in self._runs(present, missed):
            rule = self.rule(run[0].spec)
            cut = part.cut(slice(run[0].start, run[-1].stop), run[0].spec if rule_is_whole(rule) else None)
            change: Callable[..., None] = rule.direction if isinstance(rule, LayerUpdateRule) else rule.update
            change(cut, self.values(run[0].spec, missed, scale), kernels)
        return present

    def _runs(self, spans: Sequence[ParamLocation], missed: MissedGradients) -> Iterator[list[ParamLocation]]:
        """Neighbours that one call of a kernel updates."""
        run: list[ParamLocation] = []
        for span in spans:
            if run and not (
                run[-1].stop == span.start
                and self.group_of[run[-1].spec.name] == self.group_of[span.spec.name]
                and missed.of(run[-1].spec.name) == missed.of(span.spec.name)
                and not rule_is_whole(self.rule(span.spec))
            ):
                yield run
                run = []
            run.append(span)
        if run:
            yield run


def rule_is_whole(rule: Rule) -> bool:
    """Whether the rule wants to be called for one parameter at a time."""
    return bool(getattr(rule, "by_parameter", False))


class NativeParameterSpans:
    """The spans of one bucket's own elements, as compiled code takes them."""

    def __init__(self, spans: Sequence[ParamLocation], group_of: Mapping[str, int]) -> None:
        self._spans = spans
        self._array = np.zeros(max(1, len(spans)), SPAN)
        self._array["end"][: len(spans)] = [span.stop for span in spans]
        self._groups = [group_of[span.spec.name] for span in spans]

    def rule(self, step: StepRules, missed: MissedGradients, scale: float) -> NativeRule:
        """The rules of one update, none of whose gradients is known to be there."""
        made = {}
        for span, group in zip(self._spans, self._groups, strict=True):
            key = group, missed.of(span.spec.name)
            if key not in made:
                rule = step.rules[group]
                assert isinstance(rule, FusableUpdateRule), "ask can_fuse first"
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
        """Count what the update found nobody's gradient of."""
        for index in np.flatnonzero(self._array["fate"] == STAYS).tolist():
            missed.note(number, self._spans[index].spec.name)
