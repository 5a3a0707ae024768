"""Entry points of the programs `ringtrain` and `horovodrun`, which handle Ctrl-C before they import anything."""

import os
import sys

from ringtrain_job.cli.interrupts import exit_on_interrupt, raise_on_interrupt


def ringtrain() -> None:
    """Run the program `ringtrain`."""
    exit_on_interrupt()
    _open_closed_streams()
    from ringtrain_job.cli.main import main

    main()


def horovodrun() -> None:
    """Run the program `horovodrun`."""
    exit_on_interrupt()
    _open_closed_streams()
    from ringtrain_job.cli.horovodrun import main

    raise_on_interrupt()
    main()


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed (`>&-`), for this process and its children."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115
