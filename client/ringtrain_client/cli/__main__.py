"""Entry point of the programs `dtj` and `kubectl-dtj`, and of `python -m ringtrain_client.cli`."""

import gc
import os
import signal
import sys


def run(prog_name: str | None = None) -> None:
    """Run the command `dtj`. Ctrl-C during its imports, which take up to a second, ends the process with code 130."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # a shell's background process ignores the signal
        signal.signal(signal.SIGINT, _exit_early)
    gc.disable()  # until the command is imported: searching the imported modules for garbage takes a tenth of the time
    from .main import main

    signal.signal(signal.SIGINT, interrupt)
    main(prog_name=prog_name)


def _exit_early(*_: object) -> None:
    if "local" in sys.argv[1:2]:
        os.write(2, b"stopped before any rank was started\n")
    os._exit(130)


if __name__ == "__main__":
    run("dtj")
