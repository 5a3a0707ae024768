"""Session of a rank with its data workers."""

import threading
from pathlib import Path

import pytest

from ringtrain.data.service import session
from ringtrain.shared.data_members import DataAddress, DataMember, members_text
from ringtrain.shared.secrets import Secrets
from ringtrain_data_service.config import DataStreamSettings
from ringtrain_data_service.frames import DataWorkerAnswer, DataWorkerRequest
from ringtrain_data_service.session import DataWorkerLink, DataWorkerLinkEvents


class HastyLink(DataWorkerLink):
    """Link to a data worker that answers before the constructor returns, unless the event handler blocks."""

    asked = threading.Event()

    def __init__(self, member: DataAddress, settings: DataStreamSettings, events: DataWorkerLinkEvents) -> None:
        self.member = member
        self.heard = float("inf")
        self._said = threading.Thread(target=events.on_answer, args=(self, DataWorkerAnswer("hello", slots=1)))
        self._said.start()
        self._said.join(0.2)

    def ask(self, request: DataWorkerRequest) -> None:
        self.asked.set()

    def close(self) -> None:
        """There is nothing to close."""

    def join(self, timeout_s: float) -> None:
        self._said.join(timeout_s)


def test_a_data_worker_that_says_hello_at_once_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is registered by then; otherwise the rank would wait for ever for an available data worker."""
    members = tmp_path / "members"
    monkeypatch.setattr(session, "DataWorkerLink", HastyLink)
    members.write_text(members_text("loader", [DataMember("uid", 0, "a", "pod", "127.0.0.1:1", "loader", 1)]))
    asking = session.DataWorkerSession(DataStreamSettings(members_file=members, secrets=Secrets(), uid="uid"))
    try:
        asking.ask(DataWorkerRequest(key=1, function="f"))
        assert HastyLink.asked.wait(30)
    finally:
        asking.close()
