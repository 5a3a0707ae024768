"""File with the addresses of a large world, for ranks whose environment variables cannot store them."""

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.control.model import World

# The kernel limits a variable to 128 KiB, and a rank may start programs with longer variables.
MOST_BYTES = 100_000
# A rank that has received a generation may still read its file when the next one is sent to others.
_KEPT = 2


class WorldFiles:
    """Files with addresses of large worlds, created when needed. `stack` deletes them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._directory: Path | None = None
        self._written: dict[int, Path] = {}

    def fitted(self, variables: Mapping[str, str], world: World) -> dict[str, str]:
        """Return `variables`, with values that are too long for the environment moved to a file.

        `TF_CONFIG`, which TensorFlow reads only from the environment, is replaced by a value that TensorFlow rejects: a
        rank without one would train alone. Raises ConfigurationError if the file cannot be written.
        """
        fitted = dict(variables)
        long = [name for name in (contract.ENV_RING_ADDRESSES, "TF_CONFIG") if is_too_long(fitted.get(name, ""))]
        if not long:
            return fitted
        fitted[contract.ENV_WORLD_FILE] = str(self._file(world))
        if contract.ENV_RING_ADDRESSES in long:
            fitted[contract.ENV_RING_ADDRESSES] = ""
        if "TF_CONFIG" in long:
            fitted["TF_CONFIG"] = unusable_tf_config(len(world.tf_addresses), json.loads(fitted["TF_CONFIG"])["task"])
        return fitted

    def _file(self, world: World) -> Path:
        if world.generation not in self._written:
            self._written[world.generation] = self._made(world)
            for generation in sorted(self._written)[:-_KEPT]:
                self._written.pop(generation).unlink(missing_ok=True)
        return self._written[world.generation]

    def _made(self, world: World) -> Path:
        try:
            return self._write(world)
        except OSError as error:
            raise ConfigurationError(
                f"the addresses of {len(world.ring_addresses)} ranks are too long for environment variables, and the "
                f"agent cannot write them to a temporary file ({error.strerror}); make /tmp writable in the container"
            ) from error

    def _write(self, world: World) -> Path:
        if self._directory is None:
            made = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-world-"))
            self._directory = Path(made)
        content = {
            "version": 1,
            "generation": world.generation,
            "ringAddresses": world.ring_addresses,
            "tfAddresses": world.tf_addresses,
        }
        path = self._directory / f"{world.generation}.json"
        path.write_text(json.dumps(content))
        return path


def is_too_long(value: str) -> bool:
    """Return whether `value` exceeds MOST_BYTES, near the kernel's limit for an environment variable."""
    return len(os.fsencode(value)) > MOST_BYTES


def unusable_tf_config(size: int, task: Mapping[str, object]) -> str:
    """Return a TF_CONFIG that makes TensorFlow raise TypeError. The error names the file with the `size` addresses."""
    where = f"workers, of which {size} are too many for TF_CONFIG: see {contract.ENV_WORLD_FILE}"
    return json.dumps({"cluster": {where: f"{size} addresses"}, "task": dict(task)})
