"""Program of a compute job: `ringtrain run -np 4 python -m ringtrain.tensorflow.data.compute_worker CONFIG`."""

from __future__ import annotations

import functools
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from ringtrain import broadcast_object, init, rank, shutdown, size
from ringtrain.errors import ConfigurationError, DataError, RingtrainError, counted
from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig, compute_worker_fn
from ringtrain_data_service.tensorflow.config import SIDES, read_tf_data_key
from ringtrain_data_service.tensorflow.directory import TfDataDirectory
from ringtrain_data_service.tensorflow.servers import TfDataServerProcesses

_PROBE_S = 2.0
_KEY_BYTES = 32


@dataclass(frozen=True)
class TfDataComputeOptions:
    """Options of a compute job; see `--help`."""

    configfile: Path
    dispatchers: int = 1
    dispatcher_side: str = "compute"
    timeout: int = 60
    key_file: Path | None = None


def compute_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a compute job to a click command, which receives them as `options`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        options = TfDataComputeOptions(**{field.name: given.pop(field.name) for field in fields(TfDataComputeOptions)})
        command(options=options, **given)

    one_or_each = "One, or one for each training rank."
    times = "Limit in seconds for dispatchers and workers to connect."
    key = "Write only this file's name to CONFIGFILE, and read (or create) the key in it."
    file = click.Path(dir_okay=False, path_type=Path)
    for option in (
        click.argument("configfile", type=file),
        click.option("--dispatchers", type=click.IntRange(1), default=1, show_default=True, help=one_or_each),
        click.option(
            "--dispatcher-side",
            type=click.Choice(SIDES),
            default="compute",
            show_default=True,
            help="Job in which the dispatchers run.",
        ),
        click.option("--timeout", type=click.IntRange(1), default=60, show_default=True, help=times),
        click.option("--key-file", type=file, help=key),
    ):
        with_options = option(with_options)
    return with_options


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@compute_options
@click.option("--host", help="Address by which training reaches this process [default: the address of this host].")
def main(options: TfDataComputeOptions, host: str | None) -> None:
    """Serve TensorFlow datasets to the training job that reads CONFIGFILE, until that job ends the service.

    Every rank is one worker; rank 0 writes CONFIGFILE.
    """
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s ringtrain data: %(message)s")
    try:
        servers = TfDataServerProcesses(options.timeout, forked=True)  # before any thread is started
        signal.signal(signal.SIGTERM, _leave_tf_data_on_signal)
        init()
        with _tf_data_service_config(options) as plain:
            compute_worker_fn(TfDataServiceConfig.from_dict(broadcast_object(plain)), servers, host)
        shutdown()
    except RingtrainError as error:
        raise click.ClickException(str(error)) from error


def _leave_tf_data_on_signal(number: int, _: Any) -> None:
    """Exit by an exception, so that CONFIGFILE is removed; training that found it would wait forever."""
    raise SystemExit(128 + number)


@contextmanager
def _tf_data_service_config(options: TfDataComputeOptions) -> Iterator[dict[str, Any]]:
    """Run the directory and yield its config on rank 0; yield {} on other ranks. Raises ConfigurationError for invalid
    options."""
    check_tf_data_ranks(options, size())
    if rank() != 0:
        yield {}
        return
    with tf_data_directory(options, size()) as plain:
        yield plain


def check_tf_data_ranks(options: TfDataComputeOptions, ranks: int) -> None:
    """Raise ConfigurationError unless `ranks` is a multiple of the number of dispatchers."""
    each, left_over = divmod(ranks, options.dispatchers)
    if left_over:
        raise ConfigurationError(
            f"{counted(ranks, 'rank')} can't be divided equally among {counted(options.dispatchers, 'dispatcher')}; "
            f"start a multiple of the dispatchers as ranks (-np {(each + 1) * options.dispatchers}), or change "
            "--dispatchers"
        )


@contextmanager
def tf_data_directory(options: TfDataComputeOptions, ranks: int) -> Iterator[dict[str, Any]]:
    """Run the directory (list of servers) while the context is open. Write the config file and yield its content.
    Raises ConfigurationError for invalid options."""
    check_tf_data_ranks(options, ranks)
    _check_unused(options.configfile)
    key = secrets.token_bytes(_KEY_BYTES) if options.key_file is None else _tf_data_key_in(options.key_file)
    each = ranks // options.dispatchers
    with closing(TfDataDirectory(options.dispatchers, each, key)) as listening:
        config = TfDataServiceConfig(
            dispatchers=options.dispatchers,
            workers_per_dispatcher=each,
            dispatcher_side=options.dispatcher_side,
            addresses=listening.addresses(),
            key=key,
            timeout=options.timeout,
            key_file=None if options.key_file is None else str(options.key_file.resolve()),
        )
        config.write(options.configfile)
        try:
            yield config.to_dict()
        finally:
            config.remove(options.configfile)


def _check_unused(configfile: Path) -> None:
    """Raise ConfigurationError if `configfile` belongs to a compute job that still answers."""
    try:
        client = TfDataServiceConfig.read(configfile).compute_client()
        client.state(within_s=_PROBE_S)
    except (DataError, ConfigurationError):
        return
    raise ConfigurationError(f"{configfile} belongs to a running compute job; pass another path for this compute job")


def _tf_data_key_in(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_tf_data_key(path)
    except OSError as error:
        raise ConfigurationError(f"the key file {path} can't be created: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(_KEY_BYTES))
    return read_tf_data_key(path)


if __name__ == "__main__":
    main()
