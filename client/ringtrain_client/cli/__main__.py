"""Entry point of the programs `dtj` and `kubectl-dtj`, and of `python -m ringtrain_client.cli`."""

import os
import signal


def run(prog_name: str | None = None) -> None:
    """Run the command `dtj`. Ctrl-C during its imports, which take up to a second, ends the process with code 130."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # a shell's background process ignores the signal
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .main import main

    signal.signal(signal.SIGINT, interrupt)
    main(prog_name=prog_name)


if __name__ == "__main__":
    run("dtj")
