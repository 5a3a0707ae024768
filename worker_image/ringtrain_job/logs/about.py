"""Description of a run (command, versions, user configuration) that the launcher stores in `run.json`."""

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from ringtrain_job.logs.fields import finite_number, is_number, plain_text, read_json
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)

# Limits on the length of a value or name, and on the number of names, because ranks may write anything to their pipe.
_CHARACTERS: Final = 4000
_MOST_NAMES: Final = 2000
_TEXTS = ("directory", "commit", "image", "imageID")
Found = dict[str, Any]


def read_about(value: object) -> Found | None:
    """Return the valid entries of `value`, a description of a run in a rank's report; None if there are none."""
    if not isinstance(value, dict):
        return None
    found: Found = {name: text for name in _TEXTS if (text := _about_text(value.get(name)))}
    if isinstance(command := value.get("command"), list):
        found["command"] = [_about_text(word) or "" for word in command[:_MOST_NAMES]]
    for name in ("versions", "config"):
        if isinstance(inner := value.get(name), dict):
            known = {str(key)[:_CHARACTERS]: _about_scalar(each) for key, each in list(inner.items())[:_MOST_NAMES]}
            found[name] = known
    return found or None


def _about_text(value: object) -> str | None:
    return None if (found := plain_text(value)) is None else found[:_CHARACTERS]


def _about_scalar(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    return finite_number(value) if is_number(value) else _about_text(value) or ""


class AboutFile:
    """Writer of `run.json`, which collects the run's description from agents and ranks.

    `told`: entries from the launcher.
    """

    def __init__(self, files: AttemptFiles, told: Found) -> None:
        self._files = files
        self._by: dict[str, int] = {}
        self._lock = threading.Lock()
        self.document: Found = {**read_run_description(files), **told}
        if told:
            self._write()

    def override(self, found: Mapping[str, str]) -> None:
        """Add entries from the operator. They override those of ranks."""
        with self._lock:
            self._by.update(dict.fromkeys(found, -1))
            self._store({**self.document, **found})

    def add(self, rank: int, found: Mapping[str, Any]) -> None:
        """Add entries of `rank`. Entries of the lowest rank win; later entries of the same rank are merged."""
        with self._lock:
            document = self.document
            for name, value in found.items():
                known, by = document.get(name), self._by.get(name, rank)
                if known is not None and rank > by:
                    continue
                adds = rank == by and isinstance(value, dict) and isinstance(known, dict)
                self._by[name] = rank
                document = {
                    **document,
                    name: dict(list({**known, **value}.items())[:_MOST_NAMES]) if adds and known else value,
                }
            self._store(document)

    def _store(self, document: Found) -> None:
        if document != self.document:
            self.document = document
            self._write()

    def _write(self) -> None:
        try:
            replace_whole(self._files.run, json.dumps(self.document, indent=1) + "\n")
        except OSError as exc:  # the job continues even if the disk is full
            log.debug("%s cannot be written: %s", self._files.run, exc)


def read_run_description(files: AttemptFiles) -> Found:
    """Return the content of an attempt's `run.json`; empty if it is missing or unreadable."""
    return read_about(read_json(files.run)) or {}
