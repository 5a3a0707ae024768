"""State of a DiLoCo for checkpoints."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.step_time import REDUCTION
from ringtrain_diloco.fragments import FragmentExchange
from ringtrain_diloco.recovery import DiLoCoRecovery
from ringtrain_diloco.sites import DiLoCoSiteGroups

log = logging.getLogger("ringtrain")


class SavedDiLoCo(DiLoCoRecovery):
    """Part of `DiLoCo` that saves and loads its state."""

    _elastic: bool
    _sites: DiLoCoSiteGroups | None

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which this rank resumes training bit for bit. Collective.

        Each rank saves its own state. Waits for an exchange that is under way.

        Returns `{"steps", "rank", "size", "sites", "sent", "samples", "landing", "weights": {name: array},
        "outer": [...]}`, the last with the `HostOptimizer.state_dict()` of each fragment.
        """
        if self._exchange is not None:
            self._exchange.wait()
        with REDUCTION:
            self._agree("state_dict()")
        return {
            "steps": self._steps,
            "rank": self._group.rank,
            "size": self._group.size,
            "sites": self._site_ranks,
            "sent": [fragment.sent for fragment in self._fragments],
            "samples": [fragment.samples for fragment in self._fragments],
            "landing": None if self._exchange is None else self._exchange.fragment.index,
            "weights": self._weights.copy_local(),
            "outer": [fragment.outer.state_dict() for fragment in self._fragments],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume bit for bit from the state that `state_dict()` returned on this rank. Not collective.

        In a world of another size, and with `elastic`, the state of any rank is accepted. All ranks then begin with the
        outer weights, without inner steps since the last synchronization; a warning names these steps. There are none
        after `finish()`. Raises ConfigurationError for a state of another rank, other sites, number of fragments, rule
        or model.
        """
        own: dict[str, Any] = {
            "rank": self._group.rank,
            "size": self._group.size,
            "fragments": len(self._fragments),
        }
        saved = {"rank": state.get("rank"), "size": state.get("size"), "fragments": len(state.get("outer", ()))}
        anew = self._elastic or saved["size"] != own["size"]
        if self._site_ranks or state.get("sites"):
            own["sites"], saved["sites"] = self._site_ranks, state.get("sites")
            anew = False
        if saved != own and not (anew and saved["fragments"] == own["fragments"]):
            raise ConfigurationError(
                f"DiLoCo: the state was saved with {saved}, but this rank has {own}; load the state of the same rank, "
                "or, in a world of another size, of any rank with the same number of fragments"
            )
        if self._exchange is not None:
            self._exchange.wait()
        parts = zip(self._fragments, state["outer"], state["sent"], state["samples"], strict=True)
        for fragment, outer, sent, samples in parts:
            fragment.outer.load_state_dict(outer)
            fragment.sent = state["steps"] if anew else sent
            if self._elastic:
                fragment.updates = fragment.host.updates
            fragment.samples = 0 if anew else samples
        self._steps, self._exchange, self._restored = state["steps"], None, None
        if anew:
            self._weights.use(self._fragments)
            if (first := min(state["sent"]) + 1) <= self._steps:
                log.warning("the changes of inner steps %d to %d of the saved state are not used", first, self._steps)
            return
        self._weights.write_local(state["weights"])
        if (landing := state["landing"]) is not None:
            self._exchange = FragmentExchange(self._fragments[landing], self._fragments[landing].sent)

    @property
    def _site_ranks(self) -> str:
        return "" if self._sites is None else str([list(ranks) for ranks in self._sites.sites.ranks])

    @abstractmethod
    def _agree(self, what: str) -> float:
        """Check that all ranks do `what` after as many inner steps; return the weight, in the mean, of this rank's site
        (a group of ranks)."""
