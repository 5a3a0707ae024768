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
        """Whole lines that are new since the last call. A new attempt's file is read from its beginning."""
        if attempt != self.attempt:
            self.attempt, self.offset = attempt, 0
        try:
            with (self.root / str(attempt) / "job.log").open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode(errors="replace").splitlines()
