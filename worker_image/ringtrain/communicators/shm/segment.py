"""One piece of memory that several processes map."""

import mmap
import os


class Segment:
    """Memory without a name in any file system: it is gone with the last process that maps it, however that dies.

    (A file in /dev/shm would outlive a killed job, and a container's /dev/shm has 64 MiB unless somebody thought
    of it. This memory counts against the container's memory limit like any other.)
    """

    def __init__(self, fd: int, length: int) -> None:
        self._fd = fd
        self.memory = mmap.mmap(fd, length)

    @staticmethod
    def create(length: int) -> "Segment":
        """Raises OSError where the kernel or its policy forbids it."""
        fd = os.memfd_create("ringtrain", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            return Segment(fd, length)
        except BaseException:
            os.close(fd)
            raise

    @property
    def path(self) -> str:
        """Where other processes of this user can open the segment, until `seal`."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @staticmethod
    def open(path: str, length: int) -> "Segment":
        """Map the segment that another process created. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != length:
                raise OSError(f"{path} is not the segment of {length} bytes that was announced")
            return Segment(fd, length)
        except BaseException:
            os.close(fd)
            raise

    def seal(self) -> None:
        """Let nobody else find it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self.seal()
        self.memory.close()
