"""Entry point of the program `horovodrun`, which handles Ctrl-C before it imports anything."""

from ringtrain_job.cli.entry import begin_program
from ringtrain_job.cli.interrupts import raise_on_interrupt


def horovodrun() -> None:
    """Run the program `horovodrun`."""
    begin_program()
    from ringtrain_hosts.horovodrun import main

    raise_on_interrupt()
    main()
