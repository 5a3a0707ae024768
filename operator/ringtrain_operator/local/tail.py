"""What the ranks write, as it comes: follows the merged log of whichever attempt is the present one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tail:
    """Reads on in `<root>/<attempt>/job.log`; `root` is the job's directory in the log store."""

    root: Path
    attempt: int = 0
    offset: int = 0

    def lines(self, attempt: int) -> list[str]:
        """Whole lines that are new since the last call: first what is left of the attempt before this one."""
        if attempt == self.attempt:
            return self._new_lines()
        left = self._new_lines()
        self.attempt, self.offset = attempt, 0
        return left + self._new_lines()

    def _new_lines(self) -> list[str]:
        try:
            with (self.root / str(self.attempt) / "job.log").open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode(errors="replace").splitlines()
