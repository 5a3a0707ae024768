"""Entry point of the standalone `ringtrain` that the operator copies into pods whose image lacks it.

The directory (worker_image/standalone) has its own Python and libraries, and starts this module. Of the standard
library only, and little of it: what is started many times at once imports it, too.
"""

import os
import shutil
import sys

from ringtrain.shared import contract

# As worker_image/standalone/start.c has it: what it has put aside, by the name that it had; empty: it was not set.
_ASIDE = "RINGTRAIN_ASIDE_"


def restore_environment() -> None:
    """Restore the variables of the container's environment, which the standalone program had to change."""
    for name in [name for name in os.environ if name.startswith(_ASIDE)]:
        value, own = os.environ.pop(name), name.removeprefix(_ASIDE)
        if value:
            os.environ[own] = value
        else:
            os.environ.pop(own, None)


def own_of_image(version: str) -> str | None:
    """Return the path of the image's own `ringtrain` if it is compatible with `version`; None otherwise."""
    said = os.environ.get(contract.ENV_IMAGE_VERSION, "")
    if not said or os.environ.get(contract.ENV_AGENT) == "Inject":
        return None
    if said.split(".")[:2] != version.split(".")[:2]:
        _say(f"the image has ringtrain {said}, and the operator brings {version}, which runs")
        return None
    found = shutil.which("ringtrain")
    if found is None:
        _say(f"the image says that it has ringtrain {said}, and it is not in PATH; the operator's runs")
    return found


def _say(line: str) -> None:
    print(f"ringtrain: {line}", file=sys.stderr)


def main() -> None:
    """Run the image's own `ringtrain` with these arguments; without a compatible one, run the standalone one."""
    restore_environment()
    from importlib.metadata import version

    own = own_of_image(version("ringtrain"))
    if own is not None:
        os.execv(own, ["ringtrain", *sys.argv[1:]])
    from ringtrain_job.cli.main import main as command

    command(prog_name="ringtrain")
