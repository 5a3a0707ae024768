"""File that preserves an elastic job's generations across restarts of the launcher process."""

import json
import logging
from dataclasses import asdict

from ringtrain_job.launcher.elastic_end import LossRecord, OwnFailures, TrainingSteps
from ringtrain_job.launcher.generation_state import GenerationOrders, GenerationPhase, GenerationState
from ringtrain_job.launcher.members import MemberProcess
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)


class GenerationJournal:
    """State of the generations in a file, for a launcher process that restarts."""

    def __init__(self, files: AttemptFiles) -> None:
        self._path = files.formation

    def write(self, state: GenerationState, asked: frozenset[int]) -> None:
        """Replace the file. If the disk is full, log an error; a new process then learns the state from the agents."""
        orders = {**asdict(state.orders), "slots": sorted(state.orders.slots)}
        document = {**asdict(state), "orders": orders, "asked": sorted(asked)}
        try:
            replace_whole(self._path, json.dumps(document))
        except OSError as exc:
            log.error("a restarted launcher will have to form the world again: %s", exc)

    def read(self) -> tuple[GenerationState, frozenset[int]] | None:
        """Return the last written state; None if there is none that can be read.

        Its times are reset, because the clock of the previous process has ended. `orders.given` is False, because this
        process has sent no order.
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
            log.error("%s cannot be read, the world is formed again: %s", self._path, exc)
            return None
        return state, asked
