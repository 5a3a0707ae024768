"""Registration of data workers, which serve a job's training data, and the file with their addresses for ranks."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from ringtrain.errors import DataError
from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import message_fields
from ringtrain.shared.rpc import stub_of

log = logging.getLogger(__name__)

DATA_SERVICE: Final = pb.DESCRIPTOR.services_by_name["DataWorkers"]
_VERSION: Final = 1
_SAY_EVERY: Final = 20


@dataclass(frozen=True)
class DataMember:
    """Data worker as it registers at the launcher. `instance`: id of the running process. `address`: host:port."""

    job_uid: str
    index: int
    instance: str
    pod: str
    address: str
    kind: str
    slots: int
    dispatchers: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataAddress:
    """Address of a data worker as a rank reads it."""

    index: int
    instance: str
    address: str


def members_text(kind: str, members: Iterable[DataMember]) -> str:
    """Return the content of RINGTRAIN_DATA_WORKERS_FILE for these data workers; see docs/contract.md."""
    by_index = sorted(members, key=lambda member: member.index)
    workers = [{"index": one.index, "instance": one.instance, "address": one.address} for one in by_index]
    dispatchers = [address for one in by_index for address in one.dispatchers]
    document = {"version": _VERSION, "kind": kind, "workers": workers, "dispatchers": dispatchers}
    return json.dumps(document) + "\n"


def digest(text: str) -> str:
    """Return a short digest of the file's content, by which agent and launcher compare versions; empty for none."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def read_members(path: Path) -> tuple[DataAddress, ...]:
    """Return the data workers in the file at `path`; empty if it does not exist yet. Raises DataError for an invalid
    file."""
    expected = 'expected {"version": 1, "workers": [{"index": 0, "instance": "a", "address": "10.0.0.9:7370"}]}'
    try:
        document = json.loads(path.read_text())
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']}")
        return tuple(
            DataAddress(int(one["index"]), str(one.get("instance", "")), str(one["address"]))
            for one in document["workers"]
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a list of data workers ({error!r}); {expected}") from error


class DataMembersFile:
    """File that lists the data workers. An agent writes the file for its ranks; each write replaces it atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = ""

    def take(self, text: str) -> None:
        """Replace the file by the content that the launcher has sent; an empty text changes nothing."""
        if not text:
            return
        new = self.path.with_suffix(".new")
        try:
            new.write_text(text)
            os.replace(new, self.path)
        except OSError as error:  # ranks continue with the known ones; the next heartbeat tries again
            log.warning("%s cannot be written: %s", self.path, error)
            return
        self.version = digest(text)


class DataMemberAnnouncer:
    """Thread that registers a data worker at the launcher again and again, until `close`.

    `member` is called before each request. `on_members` gets the launcher's list of all data workers.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        member: Callable[[], DataMember],
        *,
        heartbeat_s: float,
        call_s: float,
        on_members: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stub = stub_of(channel, DATA_SERVICE)
        self._member = member
        self._heartbeat_s = heartbeat_s
        self._call_s = call_s
        self._on_members = on_members
        self._closed = threading.Event()
        self._problems = 0
        self._thread = threading.Thread(target=self._run, name="ringtrain-announce", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop registering; the launcher removes the data worker when its heartbeats stop."""
        self._closed.set()
        self._thread.join(self._call_s)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                reply = self._stub.Announce(pb.DataWorker(**message_fields(self._member())), timeout=self._call_s)
            except grpc.RpcError as error:
                self._complain(f"{error.code().name}: {error.details()}")
            except OSError as error:  # the launcher's name does not resolve yet
                self._complain(str(error))
            except ValueError:  # the channel was closed
                return
            else:
                self._apply_reply(reply)
            self._closed.wait(self._heartbeat_s)

    def _apply_reply(self, reply: Any) -> None:
        if not reply.accepted:
            self._complain(f"refused: {reply.reason}")
            return
        if self._problems:
            log.info("the launcher answers again")
        self._problems = 0
        self._on_members(reply.members)

    def _complain(self, problem: str) -> None:
        if self._problems % _SAY_EVERY == 1:  # the first failure may be a launcher that starts later
            log.warning("this data worker is not registered at the launcher: %s", problem)
        self._problems += 1
