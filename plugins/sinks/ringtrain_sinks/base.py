"""Interface of a sink, and the table of all sinks. To add one, write a module with `open_sink` and a row here."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from ringtrain.errors import ConfigurationError, quoted


@dataclass(frozen=True)
class SinkAttempt:
    """Attempt whose reports a sink sends. `began`: seconds since the epoch; `ranks`: world size, 0 if unknown."""

    namespace: str
    job: str
    number: int
    directory: Path
    began: float
    ranks: int = 0

    @property
    def key(self) -> str:
        """Identifier of this attempt, equal in all processes that send it; a later run of the same name has a different
        one."""
        return f"{self.namespace}/{self.job}/{self.number}@{self.began:.3f}"


class Sink(Protocol):
    """Interface of a sink: receives one attempt's reports and sends them. It runs in a separate process."""

    @property
    def pending(self) -> int:
        """Number of reports or steps that are queued and not yet sent."""

    def report(self, rank: int, report: Mapping[str, Any]) -> None:
        """Queue one report of `rank` (docs/contract.md). Only `flush` and `end` send it."""

    def flush(self, about: Mapping[str, Any]) -> None:
        """Send the queued reports, and new entries of `about`, the content of `run.json`.

        Raises any error of the service's library; the next call then sends the same data again.
        """

    def end(self, outcome: str, failure: str) -> None:
        """Send all remaining reports and the attempt's outcome: Succeeded, Failed, Stopped or Unknown.

        Raises like `flush`, and may be called again.
        """


@dataclass(frozen=True)
class SinkKind:
    """Entry of the table of sinks: module, required package, and the pip extra that installs the package."""

    module: str
    package: str
    extra: str


SINKS: Final = {
    "mlflow": SinkKind("ringtrain_sinks.mlflow", "mlflow", "mlflow"),
    "tensorboard": SinkKind("ringtrain_sinks.tensorboard", "tensorboard", "tensorboard"),
    "wandb": SinkKind("ringtrain_sinks.wandb", "wandb", "wandb"),
}


def check_sink(name: str, asked_by: str) -> None:
    """Raise ConfigurationError unless `name` is a known sink whose package is installed.

    `asked_by`: variable or option that names the sink.
    """
    if name not in SINKS:
        raise ConfigurationError(f"{asked_by}: {quoted(name)} is not a sink; expected one of {', '.join(SINKS)}")
    kind = SINKS[name]
    if find_spec(kind.package) is None:
        raise ConfigurationError(
            f"{asked_by}: {name} needs the package {kind.package}, which is not installed: pip "
            f"install 'ringtrain[{kind.extra}]'"
        )


def open_sink(name: str, attempt: SinkAttempt) -> Sink:
    """Return a new sink called `name` for one attempt. Raises ImportError and other errors of the service's package."""
    sink: Sink = importlib.import_module(SINKS[name].module).open_sink(attempt)
    return sink
