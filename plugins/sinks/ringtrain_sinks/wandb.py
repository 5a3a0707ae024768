"""Weights & Biases sink that writes offline files. A user sends them to the service with `wandb sync`."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import wandb

from ringtrain_sinks.base import SinkAttempt
from ringtrain_sinks.means import MeansSink

_TEXTS: Final = ("image", "imageID", "commit")


def open_sink(attempt: SinkAttempt) -> "WandbSink":
    """Return a W&B sink that writes an offline run to `wandb/` in the attempt's log folder."""
    return WandbSink(attempt)


class WandbSink(MeansSink):
    """Sink that writes means over ranks into the run's history, and values of `rt.report_config` into its config."""

    def __init__(self, attempt: SinkAttempt) -> None:
        super().__init__(attempt)
        self._run: Any = None

    def flush(self, about: Mapping[str, Any]) -> None:
        """Write completed steps, and the settings in `about`, to the offline run."""
        run = self._begun()
        config = dict(about.get("config") or {})
        known = {f"ringtrain.{name}": about[name] for name in _TEXTS if name in about}
        if config or known:
            run.config.update({**config, **known}, allow_val_change=True)
        while self._points:
            point = self._points[0]
            run.log({**point.values, "_timestamp": point.time}, step=point.step)
            self._points.popleft()

    def _begun(self) -> Any:
        if self._run is None:
            attempt = self._attempt
            settings = wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True,
                x_disable_machine_info=True,
            )  # fmt: skip
            self._run = wandb.init(
                mode="offline",
                dir=str(attempt.directory),
                id=hashlib.sha256(attempt.key.encode()).hexdigest()[:16],
                name=f"{attempt.job} {attempt.number}",
                group=f"{attempt.namespace}/{attempt.job}",
                settings=settings,
            )
        return self._run

    def end(self, outcome: str, failure: str) -> None:
        """Write the remaining steps and the outcome, and close the offline run."""
        self._points.extend(self._means.rest())
        self.flush({})
        self._run.summary.update({"ringtrain.outcome": outcome, **({"ringtrain.failure": failure} if failure else {})})
        self._run.finish(exit_code=0 if outcome == "Succeeded" else 1)
