"""The command `horovodrun`: the same as `ringtrain run`, except that -v prints the version."""

from typing import Final

import click

from ringtrain_job.cli.run import run
from ringtrain_job.cli.run_help import RunCommand


def _horovodrun_params() -> list[click.Parameter]:
    params = [option for option in run.params if option.name != "verbose"]
    verbose = click.Option(("--verbose",), is_flag=True, help="Also print messages of launcher and agents.")
    return [*params, verbose]


_command = RunCommand(
    "horovodrun",
    params=_horovodrun_params(),
    callback=run.callback,
    help=run.help,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
main: Final = click.version_option(None, "-v", "--version", package_name="ringtrain")(_command)
