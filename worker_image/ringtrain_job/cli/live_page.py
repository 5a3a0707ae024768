"""`--ui` of a run: the link to its launcher's page."""

import secrets
from collections.abc import Mapping

from ringtrain.shared import contract
from ringtrain_job.cli.ending import say
from ringtrain_job.page.access import page_token


def page_settings(wanted: bool) -> dict[str, str]:
    """What the launcher of a run is told whose page is wanted: a token that nobody else has."""
    return {contract.ENV_STATUS_TOKEN: secrets.token_hex(32)} if wanted else {}


def say_link(environment: Mapping[str, str]) -> None:
    """Say where the page of the launcher with this environment is, if it is wanted."""
    if token := environment.get(contract.ENV_STATUS_TOKEN):
        say(f"page: http://127.0.0.1:{environment[contract.ENV_STATUS_PORT]}/?token={page_token(token)}")


def without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for an agent, whose ranks are the user's program."""
    return {name: value for name, value in environment.items() if name != contract.ENV_STATUS_TOKEN}
