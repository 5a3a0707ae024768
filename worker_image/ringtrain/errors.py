"""Exceptions that Ringtrain raises in rank processes.

    RingtrainError             a RuntimeError, like the errors of Horovod's collectives
    ├── ConfigurationError     a setting or argument is wrong; names it, its value and what was expected
    ├── NotInitializedError    a collective before ringtrain.init() or after shutdown()
    ├── MismatchError          ranks disagree on a shape, dtype, op, root or name; names both
    ├── PeerLost               a peer died, stalled or left during a collective; names the rank
    ├── StateLost              a part of the optimizer's state was lost with its ranks; load a checkpoint
    │   └── NotRestored        no rank has committed state and no checkpoint was loaded
    ├── StateCorrupt           two copies of the optimizer's state differ; names the ranks
    ├── RankFailed             a rank that ringtrain.run() started has failed; names it, includes its traceback
    ├── DataError              a data set, shard or file is invalid
    ├── StorageError           an object store refuses or does not answer; names the URI, the cause, the way out
    │   └── ObjectMissing      the object does not exist
    └── CheckpointError        no checkpoint can be read or written

Each foreign library's errors are mapped to these in one place (`raise … from exc`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

# Part of the log line of an elastic rank that continues after a loss.
GOES_ON: Final = "; going on from commit "


class RingtrainError(RuntimeError):
    """Base of all errors below."""


class ConfigurationError(RingtrainError, ValueError):
    """An environment variable or argument is wrong.

    The message gives its name, its value, what was expected and how to correct it.
    """


class NotInitializedError(RingtrainError, ValueError):
    """A collective was called before `ringtrain.init()` or after `ringtrain.shutdown()`."""


class MismatchError(RingtrainError, ValueError):
    """Ranks called the same collective with different shape, dtype, op, root or name."""


class PeerLost(RingtrainError, ConnectionError):
    """A peer died, stalled or left while others waited for it.

    `rank`: the lost rank, in the numbering of the world.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class StateLost(RingtrainError):
    """A part of the optimizer's state was lost with the ranks that had it.

    `ranks`: the ranks of the former world that had it.
    """

    def __init__(self, ranks: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


class NotRestored(StateLost):
    """No rank has committed state and no checkpoint was loaded, so training would start from scratch unnoticed."""


class StateCorrupt(RingtrainError):
    """Copies of the optimizer's state differ, or memory changed without a write.

    `ranks`: the ranks with the affected shard: its owner and its replicas if the wrong copy is unknown.
    """

    def __init__(self, ranks: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankFailed(RingtrainError):
    """A rank that `ringtrain.run()` started failed or did not end in time. `rank`: number of the rank; None if several
    ranks failed."""

    def __init__(self, rank: int | None, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class DataError(RingtrainError, ValueError):
    """A data set, shard or file is invalid."""


class StorageError(RingtrainError, OSError):
    """An object store refuses a request or does not answer in time.

    The message names the URI, the cause and how to correct it.
    """


class ObjectMissing(StorageError):
    """An object does not exist in its object store."""


class CheckpointError(RingtrainError, OSError):
    """No checkpoint can be read or written."""


_SHOWN_CHARACTERS = 200
_NAMED_MOST = 8


def shown(value: object) -> str:
    """Return `value` as text for a message: a string unchanged, other values by repr. Long texts are truncated."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def quoted(value: object) -> str:
    """Return `value` as text for a message like `shown`, with quotes around a string."""
    return shown(repr(value)) if isinstance(value, str) else shown(value)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 slot` and `2 slots`. `plural`: if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def some_of(names: Sequence[str]) -> str:
    """Join `names` for a message. Lists only the first few and the number of the others if there are many."""
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")


def in_ranges(numbers: Iterable[int]) -> str:
    """Format numbers of ranks, workers or attempts for a message: `0-2, 5, 7, 8 and 12 more`; `none` if empty."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    parts = [part for run in runs for part in ([run] if len(run) > 2 else [[number] for number in run])]
    more = sum(map(len, parts[_NAMED_MOST:]))
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts[:_NAMED_MOST]]
    return ", ".join(texts) + (f" and {more} more" if more else "") or "none"


def kind_of(value: object) -> str:
    """Describe a value's type for a message about a wrong argument: `an int`, `the class Adam`."""
    kind = value if isinstance(value, type) else type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if kind is value:
        return f"the class {name}"
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
