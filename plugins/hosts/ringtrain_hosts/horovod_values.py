"""Values of horovodrun's options, from the command line or from a `--config-file`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import NEVER, log_level
from ringtrain_hosts.horovod_options import OPTIONS, ignored_option_notes
from ringtrain_hosts.ssh import SshOptions
from ringtrain_job.logs.layout import AttemptFiles

# Keys whose option has another name: --gloo or --mpi selects the controller, and a flag disables the check.
_OTHERS = frozenset({"controller", "stall_check.enabled"})
# Name under which the note about unknown keys is stored.
UNKNOWN: Final = "unknown settings"


@dataclass(frozen=True)
class HorovodrunValues:
    """Values of horovodrun's options by name; None if neither command line nor config file sets one."""

    given: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> Any:
        """Return the value of the option `name`, or None."""
        return self.given.get(name)

    @property
    def notes(self) -> list[str]:
        """Messages about options without effect and about unknown settings of the config file."""
        unknown = self.of(UNKNOWN)
        return [*ignored_option_notes(dict(self.given)), *([unknown] if unknown else [])]

    @property
    def ssh(self) -> SshOptions:
        """Options for reaching other hosts over ssh."""
        names = map(str.strip, (self.of("network_interfaces") or "").split(","))
        return SshOptions(self.of("ssh_port"), self.of("ssh_identity_file"), tuple(filter(None, names)))

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for launcher, agents and ranks that these options set."""
        off = self.of("no_stall_check")
        stall, warning = (
            NEVER if off else _never_if_0(self.of(f"stall_check_{which}_time_seconds"))
            for which in ("shutdown", "warning")
        )
        level = self.of("log_level")
        found = {
            contract.ENV_START_TIMEOUT: _seconds_text(self.of("start_timeout")),
            contract.ENV_STALL_TIMEOUT: stall,
            contract.ENV_STALL_WARNING: warning,
            contract.ENV_TIMELINE: self.of("timeline_filename"),
            contract.ENV_LOG_LEVEL: level and log_level("--log-level", level),
        }
        return {name: value for name, value in found.items() if value is not None}

    def link_outputs(self, files: AttemptFiles, slots: int) -> None:
        """Create the links `rank.N/stdout` to the ranks' logs in the folder of --output-filename."""
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
                    f"--output-filename {self.of('output_filename')}: cannot create {link} ({exc.strerror}); "
                    "choose a directory that you can write"
                ) from exc


def horovodrun_values(given: Mapping[str, Any]) -> HorovodrunValues:
    """Return the values of horovodrun's options, with those of the file of `--config-file`.

    `given`: values of options of the command line by name, which have priority. Raises click.UsageError.
    """
    named = {option.name: given[option.name] for option in OPTIONS}
    if named["config_file"] is not None:
        configured = read_config_file(named["config_file"])
        named = {**configured, **{name: value for name, value in named.items() if value is not None}}
    return HorovodrunValues(named)


def _never_if_0(value: float | None) -> str | None:
    return NEVER if value == 0 else _seconds_text(value)


def _seconds_text(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def read_config_file(path: str) -> dict[str, Any]:
    """Return option values by name from a --config-file. The key `UNKNOWN` has a message about unknown keys.

    Raises a usage error for an invalid value.
    """
    content = _load_config(path)
    given = {".".join(keys): value for keys, value in _leaf_settings(path, content)}
    known = {option.config: option for option in OPTIONS if option.config}
    unknown = [key for key in given if key not in known and key not in _OTHERS]
    found = {known[key].name: _converted(path, key, value) for key, value in given.items() if key in known}
    found |= _controller_option(path, given.get("controller"))
    if unknown:
        found[UNKNOWN] = f"--config-file {path}: {', '.join(unknown)}: not a setting of Horovod; ignored"
    if "stall_check.enabled" in given:
        found["no_stall_check"] = not given["stall_check.enabled"]
    return found


def _load_config(path: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise click.UsageError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as exc:
        raise click.UsageError(f"--config-file {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = "" if mark is None else f": see line {mark.line + 1}"
        raise click.UsageError(f"--config-file {path} is not YAML{where}") from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"--config-file {path}: expected settings by name, such as timeline: {{filename: …}}")
    return content


def _leaf_settings(path: str, content: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
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


def _controller_option(path: str, value: Any) -> dict[str, bool]:
    if value is None:
        return {}
    if str(value).lower() not in ("gloo", "mpi"):
        raise click.UsageError(f"--config-file {path}: controller is {value!r}; expected gloo or mpi")
    return {str(value).lower(): True}
