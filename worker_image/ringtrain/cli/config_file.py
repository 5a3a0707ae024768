"""Files for `--config-file`, of Horovod's form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ringtrain.cli.horovod_options import OPTIONS

# Keys that are no option of the same name: a controller is chosen by --gloo or --mpi, and a check is turned off.
_OTHERS = frozenset({"controller", "stall_check.enabled"})
# What the line about keys that are no setting is found by.
UNKNOWN: Final = "unknown settings"


def read_config_file(path: str) -> dict[str, Any]:
    """The options that the file at `path` gives, by name, and a line at `UNKNOWN` about keys that are none, if
    there are any. Raises a usage error for a value that is wrong."""
    content = _load(path)
    given = {".".join(keys): value for keys, value in _leaves(path, content)}
    known = {option.config: option for option in OPTIONS if option.config}
    unknown = [key for key in given if key not in known and key not in _OTHERS]
    found = {known[key].name: _converted(path, key, value) for key, value in given.items() if key in known}
    found |= _controller(path, given.get("controller"))
    if unknown:
        found[UNKNOWN] = f"--config-file {path}: {', '.join(unknown)}: no setting of Horovod, passed over"
    if "stall_check.enabled" in given:
        found["no_stall_check"] = not given["stall_check.enabled"]
    return found


def _load(path: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise click.UsageError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as exc:
        raise click.UsageError(f"--config-file {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        raise click.UsageError(f"--config-file {path} is no YAML: {exc}") from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"--config-file {path}: expected settings by name, as timeline: {{filename: …}}")
    return content


def _leaves(path: str, content: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            found += [((str(key), str(inner)), leaf) for inner, leaf in value.items() if leaf is not None]
        elif value is not None:
            found.append(((str(key),), value))
    return found


def _converted(path: str, key: str, value: Any) -> Any:
    option = next(option for option in OPTIONS if option.config == key)
    try:
        return click.types.convert_type(option.kind).convert(str(value), None, None)
    except click.BadParameter as exc:
        raise click.UsageError(f"--config-file {path}: {key}: {exc.message}") from exc


def _controller(path: str, value: Any) -> dict[str, bool]:
    if value is None:
        return {}
    if str(value).lower() not in ("gloo", "mpi"):
        raise click.UsageError(f"--config-file {path}: controller is {value!r}; expected gloo or mpi")
    return {str(value).lower(): True}
