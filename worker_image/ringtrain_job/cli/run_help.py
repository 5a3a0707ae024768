"""Help of `ringtrain run` in sections, and hints for users who pass options of other launchers."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from ringtrain.errors import RingtrainError
from ringtrain_job.cli.interrupts import EXIT_INTERRUPTED, STOPPED_EARLY
from ringtrain_job.cli.run_extension import missing_option_text, run_extensions

# Longest flags of options by the title of their section. The other options are listed last.
_SECTIONS: Final = {
    "Common options": (
        *("--num-proc", "--runs", "--name", "--ui", "--metrics", "--fail-on-nan", "--progress-every"),
        *("--quiet", "--verbose", "--help"),
    ),
    "Elastic runs": ("--min-num-proc", "--max-num-proc", "--on-loss", "--replace-timeout", "--reset-limit"),
}
_OTHERS: Final = "Other options"
_RANKS: Final = "write: ringtrain run -np N python SCRIPT (N: number of all ranks)"
_MODULE: Final = "write the whole command: ringtrain run -np N python -m MODULE"
_HOSTS: Final = "remove it: ranks run on this machine; see README for runs on several machines"
_FILES: Final = "remove it: the folder of a run has a file with the output of each rank"
# What to do instead, by option of another launcher that is unknown here.
_TORCHRUN: Final = {
    "--nproc-per-node": _RANKS,
    **dict.fromkeys(("--nnodes", "--node-rank", "--local-addr"), _HOSTS),
    "--standalone": "remove it: ranks run on this machine unless options name other hosts",
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr", "--master-port"),
        "remove it: ranks find each other through the launcher",
    ),
    "--max-restarts": "write --on-loss Restart --reset-limit N",
    **dict.fromkeys(("-m", "--module"), _MODULE),
    "--no-python": "remove it: COMMAND can be any program, such as ./train.sh",
    **dict.fromkeys(("--run-path", "--use-env", "--role", "--start-method"), "remove it: no option is needed here"),
    "--monitor-interval": "remove it: the agent notices the end of a rank at once",
    **dict.fromkeys(("--tee", "-t", "--redirects", "-r", "--logs-specs", "--local-ranks-filter"), _FILES),
}
_ACCELERATE: Final = {
    "--num-processes": _RANKS,
    **dict.fromkeys(("--num-machines", "--machine-rank", "--main-process-ip", "--main-process-port"), _HOSTS),
    "--multi-gpu": "remove it: -np is the number of ranks",
}
_HINTS: Final = {
    option: f"{launcher}'s; {hint}"
    for launcher, hints in (("torchrun", _TORCHRUN), ("accelerate", _ACCELERATE))
    for option, hint in hints.items()
}


class RunCommand(click.Command):
    """Click command that lists the options of `ringtrain run` in sections, the common ones first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args`. For an unknown option that another launcher has, raise an error with a hint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            option = exc.option_name.replace("_", "-")
            hint = next((one.hints[option] for one in run_extensions() if option in one.hints), _HINTS.get(option))
            if missing := missing_option_text(exc.option_name):
                raise click.UsageError(missing, ctx) from None
            if hint is None:
                raise
            raise click.UsageError(f"{exc.option_name} is {hint}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A RingtrainError is printed to stderr as one line; the exit code is then 1. Ctrl-C: 130."""
        try:
            return super().invoke(ctx)
        except RingtrainError as exc:
            raise click.ClickException(str(exc)) from exc
        except KeyboardInterrupt:
            click.echo(STOPPED_EARLY, err=True)
            ctx.exit(EXIT_INTERRUPTED)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section, and at last the options that have no effect."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {max(one.opts, key=len): one.get_help_record(ctx) for one in options}
        shown = {flag: record for flag, record in records.items() if record is not None}
        sections: dict[str, Sequence[str]] = dict(_SECTIONS)
        for extension in run_extensions():
            sections.update(extension.sections)
        for title, flags in sections.items():
            self._write_section(formatter, title, [shown.pop(flag) for flag in flags if flag in shown])
        self._write_section(formatter, _OTHERS, list(shown.values()))
        for extension in run_extensions():
            self._write_ignored(formatter, *extension.ignored)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's help, and the paragraphs that extensions add."""
        super().format_help_text(ctx, formatter)
        for extension in run_extensions():
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(extension.help)

    def _write_ignored(self, formatter: click.HelpFormatter, title: str, reasons: Mapping[str, Sequence[str]]) -> None:
        with formatter.section(title):
            for reason, others in reasons.items():
                text = f"{', '.join(others)}: {reason}."  # wrapped here, because click would break within an option
                for line in textwrap.wrap(text, formatter.width - 2, subsequent_indent="  ", break_on_hyphens=False):
                    formatter.write(f"  {line}\n")

    def _write_section(self, formatter: click.HelpFormatter, title: str, rows: Any) -> None:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26)
