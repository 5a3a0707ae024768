"""The command `ringtrain rsh HOST COMMAND`, which mpirun runs instead of ssh."""

import sys

import click


@click.command(hidden=True, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SSH OPTIONS] HOST COMMAND...")
def rsh(arguments: tuple[str, ...]) -> None:
    """Run COMMAND in the worker HOST (as named in mpirun's hostfile) with this command's standard streams and signals.

    Works inside the launcher of an mpi job, which calls the worker's agent over mTLS. Exits with COMMAND's exit code:
    128 + n if signal n ended it, and 255 if it could not be started. Options of ssh are ignored.
    """
    from ringtrain_mpi.rsh_client import main

    sys.exit(main(list(arguments)))
