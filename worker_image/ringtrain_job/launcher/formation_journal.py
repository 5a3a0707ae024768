"""The file that keeps the formations of an elastic job over the death of a launcher process."""

import json
import logging
from dataclasses import asdict

from ringtrain_job.launcher.elastic_end import FormationSteps, LossRecord, OwnFailures
from ringtrain_job.launcher.formation_state import FormationOrders, FormationPhase, FormationState
from ringtrain_job.launcher.members import MemberProcess
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)


class FormationJournal:
    """The state of the formations in a file, for a launcher process that is started again."""

    def __init__(self, files: AttemptFiles) -> None:
        self._path = files.formation

    def write(self, state: FormationState, asked: frozenset[int]) -> None:
        """Replace the file. A disk that is full is said: then a new process learns from the agents."""
        orders = {**asdict(state.orders), "slots": sorted(state.orders.slots)}
        document = {**asdict(state), "orders": orders, "asked": sorted(asked)}
        try:
            replace_whole(self._path, json.dumps(document))
        except OSError as exc:
            log.error("a launcher that is started again will have to make the world anew: %s", exc)

    def read(self) -> tuple[FormationState, frozenset[int]] | None:
        """The state that was written last; None without one that can be read.

        Its times were those of a clock that has ended with its process, and this process has given no order.
        """
        try:
            document = json.loads(self._path.read_text())
            asked = frozenset(document["asked"])
            orders, losses = document["orders"], document["losses"]
            failures = tuple(OwnFailures(**mark) for mark in losses["failures"])
            state = FormationState(
                phase=FormationPhase(document["phase"]),
                number=document["number"],
                members=tuple(MemberProcess(**member) for member in document["members"]),
                formed=document["formed"],
                orders=FormationOrders(**{**orders, "slots": frozenset(orders["slots"]), "given": False}),
                steps=FormationSteps(**document["steps"]),
                losses=LossRecord(**{**losses, "failures": failures, "fruitless": tuple(losses["fruitless"])}),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as exc:
            log.error("%s cannot be read, the world is made anew: %s", self._path, exc)
            return None
        return state, asked
