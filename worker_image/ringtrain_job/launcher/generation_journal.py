"""File in which the launcher stores the state of an elastic job's generations, for the launcher's restart."""

import json
import logging
from dataclasses import asdict

from ringtrain_job.launcher.elastic_end import LossRecord, OwnFailures, TrainingSteps
from ringtrain_job.launcher.generation_state import GenerationOrders, GenerationPhase, GenerationState
from ringtrain_job.launcher.members import MemberProcess
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)


class GenerationJournal:
    """Reader and writer of the file with the state of an elastic job's generations."""

    def __init__(self, files: AttemptFiles) -> None:
        self._path = files.generations

    def write(self, state: GenerationState, asked: frozenset[int]) -> None:
        """Replace the file's content by `state` and `asked`, the requested slots.

        An error is only logged: a restarted launcher then asks the agents.
        """
        orders = {**asdict(state.orders), "slots": sorted(state.orders.slots)}
        document = {**asdict(state), "orders": orders, "asked": sorted(asked)}
        try:
            replace_whole(self._path, json.dumps(document))
        except OSError as exc:
            log.error("cannot store the state of the generations (a restarted launcher must form a new one): %s", exc)

    def read(self) -> tuple[GenerationState, frozenset[int]] | None:
        """Return the stored state and the requested slots; None if the file is missing or unreadable.

        The times in the state are reset, because they are of the previous process's clock. `orders.given` is False,
        because this process has sent no order.
        """
        try:
            document = json.loads(self._path.read_text())
            asked = frozenset(document["asked"])
            orders, losses = document["orders"], document["losses"]
            failures = tuple(OwnFailures(**mark) for mark in losses["failures"])
            state = GenerationState(
                phase=GenerationPhase(document["phase"]),
                number=document["number"],
                members=tuple(MemberProcess(**member) for member in document["members"]),
                formed=document["formed"],
                orders=GenerationOrders(**{**orders, "slots": frozenset(orders["slots"]), "given": False}),
                steps=TrainingSteps(**document["steps"]),
                losses=LossRecord(**{**losses, "failures": failures, "fruitless": tuple(losses["fruitless"])}),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as exc:
            log.error("cannot read %s, so a new generation is formed: %s", self._path, exc)
            return None
        return state, asked
