"""Messages on a stream of bytes."""

import os
import socket
from pathlib import Path

import pytest

from ringtrain.shared.framing import receive_frame

HEAD = (100).to_bytes(8, "little")


@pytest.mark.parametrize("sent", [HEAD[:3], HEAD, HEAD + b"part"], ids=["head", "length", "body"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_files_of_a_frame_that_never_ends_are_closed(tmp_path: Path, sent: bytes, reset: bool) -> None:
    """Received files are closed if the connection ends in any way, in any part of the frame."""
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("wb") as file:
        socket.send_fds(theirs, [sent[:8]], [file.fileno()])
        theirs.sendall(sent[8:])
        if reset:
            ours.sendall(b"unread, so that the end is a reset")
        theirs.close()
        before = len(os.listdir("/proc/self/fd"))
        assert receive_frame(ours) is None
        assert len(os.listdir("/proc/self/fd")) == before
