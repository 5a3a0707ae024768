"""Entry point of the program `ringtrain`, which handles Ctrl-C before it imports anything."""

import os
import sys

from ringtrain_job.cli.interrupts import exit_on_interrupt


def ringtrain() -> None:
    """Run the program `ringtrain`."""
    begin_program()
    from ringtrain_job.cli.main import main

    main()


def begin_program() -> None:
    """Handle Ctrl-C, and open closed standard streams. Call it before other imports."""
    exit_on_interrupt()
    _open_closed_streams()


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed (`>&-`), for this process and its children."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115
