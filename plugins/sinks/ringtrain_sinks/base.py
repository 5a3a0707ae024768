"""Interface of a sink, and the table of all sinks. To add one, write a module with `open_sink` and add a row."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from ringtrain.errors import ConfigurationError, quoted


@dataclass(frozen=True)
class SinkAttempt:
    """An attempt whose reports are sent. `began`: seconds since the epoch; `ranks`: world size, 0 if unknown."""

    namespace: str
    job: str
    number: int
    directory: Path
    began: float
    ranks: int = 0

    @property
    def key(self) -> str:
        """Identifier that is equal for all senders of this attempt, and differs for a later run of the same name."""
        return f"{self.namespace}/{self.job}/{self.number}@{self.began:.3f}"


class Sink(Protocol):
    """Receiver of one attempt's reports. It runs in its own process, for which training never waits."""

    @property
    def pending(self) -> int:
        """Number of reports or steps that were received but not sent."""

    def report(self, rank: int, report: Mapping[str, Any]) -> None:
        """Queue one report (docs/contract.md), in the order of `metrics.jsonl`. Neither sends nor raises."""

    def flush(self, about: Mapping[str, Any]) -> None:
        """Send the queued reports. `about`: content of `run.json`, of which new entries are sent as well.

        Raises any error of the service's library; the next call then sends the same data again.
        """

    def end(self, outcome: str, failure: str) -> None:
        """Send the rest, and the outcome: Succeeded, Failed, Stopped or Unknown.

        Raises like `flush`, and may be called again.
        """


@dataclass(frozen=True)
class SinkKind:
    """Module of a sink, the package that it needs, and the extra that installs the package."""

    module: str
    package: str
    extra: str


SINKS: Final = {
    "mlflow": SinkKind("ringtrain_sinks.mlflow", "mlflow", "mlflow"),
    "tensorboard": SinkKind("ringtrain_sinks.tensorboard", "tensorboard", "tensorboard"),
    "wandb": SinkKind("ringtrain_sinks.wandb", "wandb", "wandb"),
}


def check_sink(name: str, asked_by: str) -> None:
    """Check that reports can be sent to `name` from here. Raises ConfigurationError with a solution.

    `asked_by`: variable or option that names the sink.
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
    """Return the sink `name` for one attempt. Sends nothing yet. Raises its package's errors on import."""
    sink: Sink = importlib.import_module(SINKS[name].module).open_sink(attempt)
    return sink
