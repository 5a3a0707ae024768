"""Memory that several processes map."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np

_MAP_FIXED: Final = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class _ShmMapping(mmap.mmap):
    """Mapped shared memory with its address and file descriptor. Arrays in it keep the mapping alive."""

    fd: int
    address: int
    let_go: Callable[[], object]  # closes `fd`, once

    def make_private(self) -> None:
        """Make the mapping private in a forked process, whose writes then reach no rank. Raises OSError if the system
        refuses."""
        kind, access = mmap.MAP_PRIVATE | _MAP_FIXED, mmap.PROT_READ | mmap.PROT_WRITE
        if _mmap(self.address, len(self), access, kind, self.fd, 0) != self.address:
            number = ctypes.get_errno()
            raise OSError(number, f"shared memory can't be made private: {os.strerror(number)}")


_mappings: "weakref.WeakValueDictionary[int, _ShmMapping]" = weakref.WeakValueDictionary()


def _map_segment_file(fd: int, length: int) -> _ShmMapping:
    memory = _ShmMapping(fd, length)
    memory.fd, memory.address = fd, np.frombuffer(memory, np.uint8).ctypes.data
    memory.let_go = weakref.finalize(memory, os.close, fd)
    _mappings[memory.address] = memory
    return memory


class ShmSegment:
    """Shared memory without a file name, which the kernel frees when the last process that maps it ends.

    (A file in /dev/shm would outlive a killed job, and a container's /dev/shm has 64 MiB unless configured otherwise.
    This memory counts against the container's memory limit like any other.)

    A process forked from one that maps it gets a private copy: a page is copied when the child writes to it. Weights
    are stored here, and a child's writes must not change the training's weights.
    """

    def __init__(self, fd: int, length: int) -> None:
        self.memory = _map_segment_file(fd, length)

    @staticmethod
    def create(length: int) -> "ShmSegment":
        """Create a segment of `length` bytes. Raises OSError if the kernel or a security policy forbids it."""
        fd = os.memfd_create("ringtrain", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            return ShmSegment(fd, length)
        except BaseException:
            os.close(fd)
            raise

    @property
    def path(self) -> str:
        """Return the path at which other processes of this user can open the segment."""
        return f"/proc/{os.getpid()}/fd/{self.memory.fd}"

    @staticmethod
    def open(path: str, length: int) -> "ShmSegment":
        """Map the segment that another process created. Raises OSError if refused or not of `length` bytes."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != length:
                raise OSError(f"{path} is not the segment of {length} bytes that was announced")
            return ShmSegment(fd, length)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Unmap the segment and close its descriptor."""
        self.memory.close()
        self.memory.let_go()


def _make_segments_private_in_child() -> None:
    for memory in list(_mappings.values()):
        try:
            if not memory.closed:
                memory.make_private()
        except OSError as error:  # else this process could write to the training's weights
            os.write(2, f"ringtrain: a forked process ends: {error}\n".encode())
            os._exit(1)


os.register_at_fork(after_in_child=_make_segments_private_in_child)
