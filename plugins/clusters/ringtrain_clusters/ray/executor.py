"""`RayExecutor`: Horovod's class of this name, implemented with `ringtrain.ray.run`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ray.util import get_current_placement_group

from ringtrain.errors import ConfigurationError
from ringtrain_clusters.ray.runner import run

log = logging.getLogger("ringtrain.ray")
_ELASTIC: Final = ("min_workers", "max_workers", "reset_limit", "cooldown_range", "override_discovery")


@dataclass(frozen=True)
class RaySettings:
    """Settings of RayExecutor. `timeout_s`: seconds for the rendezvous of ranks; `placement_group_timeout_s`: seconds
    until Ray must have placed all ranks."""

    timeout_s: float = 30
    placement_group_timeout_s: float = 100


class RayExecutor:
    """Horovod's RayExecutor, implemented with `ringtrain.ray.run`: each call of `run` starts new ranks.

    Pass `num_workers`, the number of ranks, or `num_hosts`, a number of nodes with `num_workers_per_host` ranks on
    each. `use_gpu`: whether each rank gets `gpus_per_worker` GPUs (default: one). Horovod's arguments for elastic
    worlds are refused: use `ringtrain run` or a job instead.
    """

    @classmethod
    def create_settings(
        cls, timeout_s: float = 30, *_: Any, placement_group_timeout_s: float = 100, **without_effect: Any
    ) -> RaySettings:
        """Return settings for RayExecutor. Horovod's keywords for ssh and network interfaces have no effect."""
        for name in without_effect:
            log.warning("%s has no effect: Ray starts the ranks", name)
        return RaySettings(timeout_s, placement_group_timeout_s)

    def __init__(
        self,
        settings: RaySettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        **elastic: Any,
    ) -> None:
        if given := [name for name, value in elastic.items() if value is not None]:
            if unknown := [name for name in given if name not in (*_ELASTIC, "elastic_timeout")]:
                raise TypeError(f"RayExecutor has no argument {unknown[0]}")
            raise ConfigurationError(
                f"RayExecutor: {given[0]} needs elastic training, which is not available on Ray; use "
                "ringtrain run with --min-np and --max-np, or a job with spec.elastic"
            )
        if (num_workers is None) == (num_hosts is None):
            raise ConfigurationError("RayExecutor: pass either num_workers, or num_hosts with num_workers_per_host")
        self._settings = settings or RaySettings()
        self._per_node = None if num_hosts is None else num_workers_per_host
        self._size = num_workers if num_hosts is None else num_hosts * num_workers_per_host
        gpus = (gpus_per_worker or 1) if use_gpu else 0
        self._resources = {"CPU": cpus_per_worker, "GPU": gpus}
        self._uses_current = use_current_placement_group
        self._env: Mapping[str, str] | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Store `extra_env_vars` for the ranks. Raises ConfigurationError if `executable_cls` is set: each `run` starts
        new ranks, so its object would not survive."""
        if executable_cls is not None:
            raise ConfigurationError(
                "RayExecutor: executable_cls is not supported because each run starts new ranks; create the "
                "object in the function that you pass to run"
            )
        self._env = extra_env_vars

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on all ranks; return the results in rank order. Raises the errors of `ray.run`."""
        if callbacks:
            raise ConfigurationError("RayExecutor: callbacks are not supported; call ringtrain.report in the ranks")
        current = get_current_placement_group() if self._uses_current else None
        return run(
            fn,
            args or (),
            kwargs,
            num_workers=self._size,  # type: ignore[arg-type]
            resources_per_worker=self._resources,
            workers_per_node=None if current else self._per_node,
            placement=current or "PACK",
            start_timeout=max(self._settings.timeout_s, self._settings.placement_group_timeout_s),
            env=self._env,
        )

    def shutdown(self) -> None:
        """Do nothing: no resources remain between runs."""
