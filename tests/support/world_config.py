"""Configurations of ranks, changed by the names of settings of any part."""

from dataclasses import fields, replace
from typing import Any

from ringtrain._core.world.config import WorkerConfig


def changed_config(config: WorkerConfig, **settings: Any) -> WorkerConfig:
    """Return `config` with changed settings, its own or those of one of its parts."""
    own = {name: settings.pop(name) for name in list(settings) if name in vars(config)}
    parts: dict[str, Any] = {}
    for part in (config.place, config.numbers, config.waits, config.ways, config.trust):
        names = {field.name for field in fields(part)} & settings.keys()
        where = next(name for name, value in vars(config).items() if value is part)
        parts[where] = replace(part, **{name: settings.pop(name) for name in names})
    assert not settings, f"no settings of a rank: {settings}"
    return replace(config, **parts, **own)


def world_config(**settings: Any) -> WorkerConfig:
    """Return the configuration of a rank with these settings."""
    return changed_config(WorkerConfig(), **settings)
