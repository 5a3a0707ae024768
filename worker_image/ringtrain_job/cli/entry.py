"""Entry points of the programs `ringtrain` and `horovodrun`, which handle Ctrl-C before they import anything."""

from ringtrain_job.cli.interrupts import exit_on_interrupt, raise_on_interrupt


def ringtrain() -> None:
    """Run the program `ringtrain`."""
    exit_on_interrupt()
    from ringtrain_job.cli.main import main

    main()


def horovodrun() -> None:
    """Run the program `horovodrun`."""
    exit_on_interrupt()
    from ringtrain_job.cli.horovodrun import main

    raise_on_interrupt()
    main()
