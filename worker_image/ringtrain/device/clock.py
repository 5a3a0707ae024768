"""The time of a simulated device: engines that work side by side."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Speeds:
    """What the device can do in a second of its own time."""

    flops_per_s: float = 1e12
    out_bytes_per_s: float = 1e10
    in_bytes_per_s: float = 1e10


@dataclass(frozen=True)
class Span:
    """One thing that an engine did. Seconds of device time."""

    engine: str
    what: str
    start_s: float
    end_s: float


@dataclass
class Engines:
    """A compute engine and a copy engine each way. A copy out begins when what it copies is computed; a
    computation begins when what it needs has come in. Apart from that they do not wait for each other.
    """

    speeds: Speeds
    trace: list[Span] = field(default_factory=list)
    _free_s: dict[str, float] = field(default_factory=dict)

    def compute(self, what: str, flops: float) -> None:
        begin = max(self._free("compute"), self._free("in"))
        self._work("compute", what, begin, flops / self.speeds.flops_per_s)

    def copy_out(self, what: str, nbytes: int) -> None:
        begin = max(self._free("out"), self._free("compute"))
        self._work("out", what, begin, nbytes / self.speeds.out_bytes_per_s)

    def copy_in(self, what: str, nbytes: int) -> None:
        # What comes in was made from what went out.
        begin = max(self._free("in"), self._free("out"))
        self._work("in", what, begin, nbytes / self.speeds.in_bytes_per_s)

    @property
    def now_s(self) -> float:
        """When the last engine is done."""
        return max(self._free_s.values(), default=0.0)

    def _free(self, engine: str) -> float:
        return self._free_s.get(engine, 0.0)

    def _work(self, engine: str, what: str, begin_s: float, duration_s: float) -> None:
        self._free_s[engine] = begin_s + duration_s
        self.trace.append(Span(engine, what, begin_s, begin_s + duration_s))
