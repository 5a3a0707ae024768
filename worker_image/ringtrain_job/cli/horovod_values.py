"""What was given for the options that `ringtrain run` shares with `horovodrun`, also in a `--config-file`."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import NEVER, log_level
from ringtrain_job.cli.horovod_options import OPTIONS, check_build_option, horovodrun_without_meaning
from ringtrain_job.cli.ssh import SshOptions
from ringtrain_job.logs.layout import AttemptFiles

F = TypeVar("F", bound=Callable[..., Any])
# Keys that are no option of the same name: a controller is chosen by --gloo or --mpi, and a check is turned off.
_OTHERS = frozenset({"controller", "stall_check.enabled"})
# What the line about keys that are no setting is found by.
UNKNOWN: Final = "unknown settings"


@dataclass(frozen=True)
class HorovodrunValues:
    """`given`: values by the option's name, None where neither command line nor config file has one."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> Any:
        """The value of one option."""
        return self.given.get(name)

    @property
    def notes(self) -> list[str]:
        """A line for each option that does nothing here, and for settings that are none."""
        unknown = self.of(UNKNOWN)
        return [*horovodrun_without_meaning(dict(self.given)), *([unknown] if unknown else [])]

    @property
    def ssh(self) -> SshOptions:
        """How other hosts are reached."""
        names = map(str.strip, (self.of("network_interfaces") or "").split(","))
        return SshOptions(self.of("ssh_port"), self.of("ssh_identity_file"), tuple(filter(None, names)))

    @property
    def variables(self) -> dict[str, str]:
        """What launcher, agents and ranks are told."""
        off = self.of("no_stall_check")
        stall, warning = (
            NEVER if off else _never_if_0(self.of(f"stall_check_{which}_time_seconds"))
            for which in ("shutdown", "warning")
        )
        level = self.of("log_level")
        found = {
            contract.ENV_START_TIMEOUT: _horovodrun_number(self.of("start_timeout")),
            contract.ENV_STALL_TIMEOUT: stall,
            contract.ENV_STALL_WARNING: warning,
            contract.ENV_TIMELINE: self.of("timeline_filename"),
            contract.ENV_LOG_LEVEL: level and log_level("--log-level", level),
        }
        return {name: value for name, value in found.items() if value is not None}

    def link_outputs(self, files: AttemptFiles, slots: int) -> None:
        """Make `rank.N/stdout` in the directory that was asked for, which lead to the logs of ranks."""
        if self.of("output_filename") is None:
            return
        for rank in range(slots):
            link = Path(self.of("output_filename")) / f"rank.{rank:0{len(str(slots - 1))}d}" / "stdout"
            try:
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(files.rank_log(rank))
            except OSError as exc:
                raise click.UsageError(
                    f"--output-filename {self.of('output_filename')}: {link} cannot be made ({exc.strerror}); "
                    "give a directory that you can write"
                ) from exc


def horovod_options(command: F) -> F:
    """`command` with the options of `OPTIONS`, of which it gets one value, `horovod`."""

    @functools.wraps(command)
    def gathered(**others: Any) -> Any:
        given = {option.name: others.pop(option.name) for option in OPTIONS}
        if given["config_file"] is not None:
            configured = read_config_file(given["config_file"])
            given = {**configured, **{name: value for name, value in given.items() if value is not None}}
        return command(horovod=HorovodrunValues(given), **others)

    declared: Callable[..., Any] = check_build_option(gathered)
    for option in reversed(OPTIONS):
        declared = option.declare(declared)
    return cast(F, declared)


def _never_if_0(value: float | None) -> str | None:
    return NEVER if value == 0 else _horovodrun_number(value)


def _horovodrun_number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def read_config_file(path: str) -> dict[str, Any]:
    """The options that the file at `path` gives, by name, and a line at `UNKNOWN` about keys that are none, if
    there are any. Raises a usage error for a value that is wrong."""
    content = _load_horovodrun_config(path)
    given = {".".join(keys): value for keys, value in _horovodrun_config_leaves(path, content)}
    known = {option.config: option for option in OPTIONS if option.config}
    unknown = [key for key in given if key not in known and key not in _OTHERS]
    found = {
        known[key].name: _converted_horovodrun_value(path, key, value) for key, value in given.items() if key in known
    }
    found |= _horovodrun_controller(path, given.get("controller"))
    if unknown:
        found[UNKNOWN] = f"--config-file {path}: {', '.join(unknown)}: no setting of Horovod, passed over"
    if "stall_check.enabled" in given:
        found["no_stall_check"] = not given["stall_check.enabled"]
    return found


def _load_horovodrun_config(path: str) -> Mapping[str, Any]:
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


def _horovodrun_config_leaves(path: str, content: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            found += [((str(key), str(inner)), leaf) for inner, leaf in value.items() if leaf is not None]
        elif value is not None:
            found.append(((str(key),), value))
    return found


def _converted_horovodrun_value(path: str, key: str, value: Any) -> Any:
    option = next(option for option in OPTIONS if option.config == key)
    try:
        return click.types.convert_type(option.kind).convert(str(value), None, None)
    except click.BadParameter as exc:
        raise click.UsageError(f"--config-file {path}: {key}: {exc.message}") from exc


def _horovodrun_controller(path: str, value: Any) -> dict[str, bool]:
    if value is None:
        return {}
    if str(value).lower() not in ("gloo", "mpi"):
        raise click.UsageError(f"--config-file {path}: controller is {value!r}; expected gloo or mpi")
    return {str(value).lower(): True}
