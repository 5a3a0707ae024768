"""Options of `ringtrain run` for elastic runs, in which ranks may join and leave."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import click

from ringtrain.shared import contract

F = TypeVar("F", bound=Callable[..., Any])

# Time for joining ranks to collect: those of one machine start together.
_JOIN_DELAY_S = 2


@dataclass(frozen=True)
class ElasticCommandOptions:
    """Options for elastic runs as given on the command line; None if not given."""

    min_ranks: int | None = None
    max_ranks: int | None = None
    on_loss: str | None = None
    replace_timeout_s: float | None = None
    resets: int | None = None

    @property
    def given(self) -> bool:
        """Whether the run is elastic: at least one of the options is given."""
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class ElasticCommandRun:
    """Settings of an elastic run of at most `slots` ranks at a time.

    `variables`: environment variables of launcher and agents.
    """

    slots: int
    variables: dict[str, str]


def elastic_options(command: F) -> F:
    """Add the options for elastic runs to `command` and return it; the command gets them as the argument `elastic`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        options = ElasticCommandOptions(
            **{field.name: given.pop(field.name) for field in fields(ElasticCommandOptions)}
        )
        return command(elastic=options, **given)

    count = click.IntRange(1, 1024)
    seconds = click.FloatRange(0, 604800, min_open=True)
    for option in (
        click.option(
            *("--reset-limit", "resets"),
            type=click.IntRange(0, 999_998),
            metavar="N",
            help="Maximum number of changes of the world [default: 99].",
        ),
        click.option(
            *("--replace-timeout", "replace_timeout_s"),
            type=seconds,
            metavar="SECONDS",
            help="Seconds to wait for a lost rank's replacement before continuing without it [default: 120].",
        ),
        click.option(
            "--on-loss",
            type=click.Choice(contract.ON_LOSS, case_sensitive=False),
            help="Action when a rank is lost. Replace: the other ranks wait for a new one. Shrink: they continue "
            "at once. Restart: all ranks start again, for programs without ringtrain.elastic [default: Replace].",
        ),
        click.option(
            *("--max-np", "--max-num-proc", "max_ranks"),
            type=count,
            metavar="N",
            help="Maximum number of ranks [default: -np]. Maturity: Beta.",
        ),
        click.option(
            *("--min-np", "--min-num-proc", "min_ranks"),
            type=count,
            metavar="N",
            help="Minimum number of ranks. With fewer ranks the run waits, then ends [default: -np]. Maturity: Beta.",
        ),
    ):
        gathered = option(gathered)
    return cast(F, gathered)


def elastic_run(ranks: int, options: ElasticCommandOptions) -> ElasticCommandRun:
    """Return the settings of an elastic run of initially `ranks` ranks. Raises click.UsageError for invalid options."""
    low = ranks if options.min_ranks is None else options.min_ranks
    high = ranks if options.max_ranks is None else options.max_ranks
    _check_np_options(low, ranks, high)
    on_loss = options.on_loss or contract.ON_LOSS[0]
    _check_loss(on_loss, low, ranks, options)
    settings = {
        contract.ENV_ELASTIC: on_loss,
        contract.ENV_ELASTIC_MIN_RANKS: low,
        contract.ENV_ELASTIC_MAX_RANKS: high,
        contract.ENV_ELASTIC_START_RANKS: ranks,
        contract.ENV_ELASTIC_JOIN_DELAY: _JOIN_DELAY_S,
        contract.ENV_ELASTIC_REPLACE_TIMEOUT: options.replace_timeout_s,
        contract.ENV_ELASTIC_FORMATION_LIMIT: None if options.resets is None else options.resets + 1,
    }
    return ElasticCommandRun(high, {name: f"{value}" for name, value in settings.items() if value is not None})


def _check_np_options(low: int, ranks: int, high: int) -> None:
    if low <= ranks <= high:
        return
    raise click.UsageError(
        f"-np {ranks}, the number of ranks at the start, is not between --min-np {low} and --max-np {high}; each of "
        "these is -np by default"
    )


def _check_loss(on_loss: str, low: int, ranks: int, options: ElasticCommandOptions) -> None:
    if on_loss != "Shrink":
        return
    if low >= ranks:
        raise click.UsageError(
            f"--on-loss Shrink: with -np {ranks} and --min-np {low} no rank may be lost; use a --min-np below -np"
        )
    if options.replace_timeout_s is not None:
        raise click.UsageError(
            "--replace-timeout and --on-loss Shrink: with Shrink, ranks do not wait for a "
            "replacement; remove one of these options"
        )
