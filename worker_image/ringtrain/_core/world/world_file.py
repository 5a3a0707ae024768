"""The file in which an agent puts a world whose addresses are too long for environment variables."""

import json
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract

_VERSION: Final = 1


def ring_addresses_in(path: Path) -> tuple[str, ...]:
    """The addresses of all ranks, by rank, as the file says. Raises ConfigurationError naming what is wrong."""
    name = f"{contract.ENV_WORLD_FILE} is {shown(str(path))}"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no JSON ({error})"
        raise ConfigurationError(
            f"{name}: {why}; expected the file that this world's agent has written"
        ) from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        raise ConfigurationError(
            f"{name}: its version is {shown(version)}; expected an object of version {_VERSION}"
        )
    addresses = content.get("ringAddresses")
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise ConfigurationError(f'{name}: ringAddresses is {shown(addresses)}; expected a list of "host:port"')
    return tuple(addresses)
