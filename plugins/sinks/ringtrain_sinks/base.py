"""What a sink is, and the table of those that there are. A new one is a module with `open_sink`, and a row."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from ringtrain.errors import ConfigurationError, quoted


@dataclass(frozen=True)
class SinkAttempt:
    """What is sent somewhere. `began`: seconds since the epoch; `ranks`: of its world, 0 where nobody knows."""

    namespace: str
    job: str
    number: int
    directory: Path
    began: float
    ranks: int = 0

    @property
    def key(self) -> str:
        """The same for all who send this attempt, and another one for a later run of the same name."""
        return f"{self.namespace}/{self.job}/{self.number}@{self.began:.3f}"


class Sink(Protocol):
    """Takes one attempt's reports. It is fed in a process of its own, which training never waits for."""

    @property
    def pending(self) -> int:
        """How many reports or steps were taken in and have not been sent."""

    def report(self, rank: int, report: Mapping[str, Any]) -> None:
        """Take in one report (docs/contract.md), in the order of `metrics.jsonl`. Sends and raises nothing."""

    def flush(self, about: Mapping[str, Any]) -> None:
        """Send what was taken in since; `about`: what `run.json` has, of which what is new is sent, too.

        Raises whatever the service's library raises; the next call then sends the same again.
        """

    def end(self, outcome: str, failure: str) -> None:
        """Send all that is left, and how the attempt ended; `outcome`: Succeeded, Failed, Stopped or Unknown.

        Raises as `flush`, and may be called again.
        """


@dataclass(frozen=True)
class SinkKind:
    """The module that sends, the package that it needs, and the extra that brings the package."""

    module: str
    package: str
    extra: str


SINKS: Final = {
    "mlflow": SinkKind("ringtrain_sinks.mlflow", "mlflow", "mlflow"),
    "tensorboard": SinkKind("ringtrain_sinks.tensorboard", "tensorboard", "tensorboard"),
    "wandb": SinkKind("ringtrain_sinks.wandb", "wandb", "wandb"),
}


def check_sink(name: str, asked_by: str) -> None:
    """Return if reports can be sent to `name` from here. Raises ConfigurationError with the way out.

    `asked_by`: the variable or option that names the sink.
    """
    if name not in SINKS:
        raise ConfigurationError(f"{asked_by}: {quoted(name)} is no sink; expected one of {', '.join(SINKS)}")
    kind = SINKS[name]
    if find_spec(kind.package) is None:
        raise ConfigurationError(
            f"{asked_by}: {name} needs the package {kind.package} where this runs: "
            f"pip install 'ringtrain[{kind.extra}]'"
        )


def open_sink(name: str, attempt: SinkAttempt) -> Sink:
    """The sink `name` for one attempt. Nothing is sent yet. Raises what its package raises on import."""
    sink: Sink = importlib.import_module(SINKS[name].module).open_sink(attempt)
    return sink
