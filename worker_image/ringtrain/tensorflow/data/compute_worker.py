"""A compute job: `ringtrain run -np 4 python -m ringtrain.tensorflow.data.compute_worker CONFIG`."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ringtrain.api.objects import broadcast_object
from ringtrain.errors import ConfigurationError, DataError, RingtrainError
from ringtrain.negotiation.queues import init
from ringtrain.process_groups.context import rank, shutdown, size
from ringtrain.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn
from ringtrain.tensorflow.data.config import SIDES, read_key
from ringtrain.tensorflow.data.directory import Directory
from ringtrain.tensorflow.data.servers import ServerProcesses

_PROBE_S = 2.0
_KEY_BYTES = 32


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("configfile", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--dispatchers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="One, or one for each training rank.",
)
@click.option(
    "--dispatcher-side",
    type=click.Choice(SIDES),
    default="compute",
    show_default=True,
    help="Which job the dispatchers run in.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Seconds that dispatchers and workers get to start and find each other.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the key in this file, which is made unless it exists, and only its name in CONFIGFILE.",
)
@click.option("--host", help="Address by which training reaches this process [default: this host's].")
def main(
    configfile: Path, dispatchers: int, dispatcher_side: str, timeout: int, key_file: Path | None, host: str | None
) -> None:
    """Serve TensorFlow datasets to a training job that is told CONFIGFILE, until that one ends it.

    Every rank is one worker; rank 0 writes CONFIGFILE.
    """
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s ringtrain data: %(message)s")
    options = _Options(configfile, dispatchers, dispatcher_side, timeout, key_file)
    try:
        servers = ServerProcesses(timeout, forked=True)  # before there are threads
        init()
        with _directory(options) as plain:
            compute_worker_fn(TfDataServiceConfig.from_dict(broadcast_object(plain)), servers, host)
        shutdown()
    except RingtrainError as error:
        raise click.ClickException(str(error)) from error


@dataclass(frozen=True)
class _Options:
    configfile: Path
    dispatchers: int
    dispatcher_side: str
    timeout: int
    key_file: Path | None


@contextmanager
def _directory(options: _Options) -> Iterator[dict[str, object]]:
    """On rank 0 the directory, and its config in the file; nothing on others. Raises ConfigurationError."""
    each, left_over = divmod(size(), options.dispatchers)
    if left_over:
        raise ConfigurationError(
            f"{size()} ranks can't be shared out among {options.dispatchers} dispatchers; start a multiple "
            f"(-np {(each + 1) * options.dispatchers}), or another number of --dispatchers"
        )
    if rank() != 0:
        yield {}
        return
    _check_unused(options.configfile)
    key = secrets.token_bytes(_KEY_BYTES) if options.key_file is None else _key_in(options.key_file)
    with closing(Directory(options.dispatchers, each, key)) as directory:
        config = TfDataServiceConfig(
            dispatchers=options.dispatchers,
            workers_per_dispatcher=each,
            dispatcher_side=options.dispatcher_side,
            addresses=directory.addresses(),
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
    """Raise ConfigurationError if the compute job that has written the file lives."""
    try:
        client = TfDataServiceConfig.read(configfile).compute_client()
        client.state(within_s=_PROBE_S)
    except (DataError, ConfigurationError):
        return
    raise ConfigurationError(f"{configfile} belongs to a compute job that runs; give this one a path of its own")


def _key_in(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_key(path)
    except OSError as error:
        raise ConfigurationError(f"the key file {path} can't be made: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(_KEY_BYTES))
    return read_key(path)


if __name__ == "__main__":
    main()
