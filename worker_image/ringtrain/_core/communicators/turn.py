"""The right to run collectives of some groups: one at a time, which is the order that peers must meet in."""

import contextlib
import threading
from collections.abc import Iterator


class Turn:
    """Who runs a collective. Compiled code (`kernels/native/calls.c`) reads `wanted`, and takes `held` by itself.

    `wanted`: how many have the turn, or wait for it; above 0 for ever once nobody is to have it any more.
    """

    def __init__(self) -> None:
        self.held = threading.Lock()
        self.wanted = 0
        self._counting = threading.Lock()
        self._holder = 0  # the thread that has it

    def want(self, step: int = 1) -> None:
        """Wait for it from now on, or `step` -1: no longer."""
        with self._counting:
            self.wanted += step

    def disown(self) -> None:
        """In a forked process: nobody is to have it any more."""
        self._counting = threading.Lock()
        self.wanted = 1

    def take_if_free(self) -> bool:
        """Take it unless somebody has it or waits for it. Whoever takes it passes it on."""
        with self._counting:
            if self.wanted:
                return False
            self.wanted = 1
        self.held.acquire()  # compiled code may have it, uncounted as yet
        self._holder = threading.get_ident()
        return True

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """What compiled code, which took it for the calling thread and passes it on, could not end at once."""
        self.want()
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = 0
            self.want(-1)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Have it, as soon as who has it passes it on; for those who are counted already."""
        with self.held:
            self._holder = threading.get_ident()
            yield
            self._holder = 0

    def pass_on(self) -> None:
        self._holder = 0
        self.held.release()
        self.want(-1)

    def await_end(self, timeout_s: float) -> None:
        """Wait until what runs has ended; not where it runs in this very thread, in whose midst a signal came."""
        if self._holder != threading.get_ident() and self.held.acquire(timeout=timeout_s):
            self.held.release()
