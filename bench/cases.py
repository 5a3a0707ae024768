"""Cases to measure: the contenders, their hosts, their work and its duration."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from bench.contest import Rounds
from bench.hosts import Hosts, Loopback, certified, namespaces
from ringtrain_job.agent.rank_env import MALLOC

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
# As ranks of a job have it: an agent sets it.
SHM = dict(MALLOC)
GRPC = {"RINGTRAIN_TRANSPORT": "grpc", **MALLOC}
# Bytes of the gradients of the step: its wire time at 1 Gbit/s is the backward pass that it is compared with.
STEP_BYTES = 25_557_032 * 4
LINE_BYTES_PER_S = 125e6

What = dict[str, Any]

# Ways in which TensorFlow's gradients come here, and the case that paces them.
TORCH_OPTIMIZERS = {
    "distributed": "DistributedOptimizer",
    "host": "HostOptimizer",
    "host-overlap": "HostOptimizer(overlap=True)",
}
OVERLAP_APIS = ("tape", "keras", "host", "v1")
TENSORFLOW_LINE = "TensorFlow, 1 Gbit/s between hosts"

# The wire takes longer than the backward pass, and so part of it is left for the next forward pass.
FRONT: What = {"kind": "four_steps", "backward_s": 0.4, "forward_s": 0.2}


@dataclass(frozen=True)
class Case:
    """`contenders`: with what each has in its environment. `work`: one after the other. `questions`: to ours, of
    what is not a matter of time."""

    name: str
    ranks: int
    hosts: Callable[[], AbstractContextManager[Hosts]]
    contenders: dict[str, dict[str, str]]
    work: list[tuple[What, Rounds]]
    questions: list[What] = field(default_factory=list)

    def only(self, word: str) -> "Case":
        """The part of the case that has `word` in its title, with the contenders that it needs."""
        work = [(what, rounds) for what, rounds in self.work if word in self.title(what)]
        questions = [what for what in self.questions if word in self.title(what)]
        needed = [what for what, _ in work] + questions
        contenders = {
            name: env for name, env in self.contenders.items() if any(self.takes_part(name, what) for what in needed)
        }
        return replace(self, work=work, questions=questions, contenders=contenders)

    def title(self, what: What) -> str:
        return title_of(self.name, self.ranks, what)

    def takes_part(self, contender: str, what: What) -> bool:
        """Not everyone can do everything."""
        if what["kind"] in ("allreduce", "tensorflow", "jax"):
            return True
        if what["kind"] in ("step", "four_steps", "pytorch") and "compression" not in what:
            return contender.startswith(("ringtrain", "gloo")) and contender != "ringtrain-neighbour"
        return contender in ("ringtrain-grpc", "ringtrain-shm", "ringtrain-pods", "ringtrain")


def title_of(case: str, ranks: int, what: What) -> str:
    """`one machine, 2 ranks: allreduce 64 MiB`."""
    shown = {key: value for key, value in what.items() if key not in ("kind", "nbytes")}
    nbytes = what.get("nbytes")
    size = [] if nbytes is None else [f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"]
    words = [what["kind"], *size, *(f"{key}={value}" for key, value in shown.items())]
    return f"{case}, {ranks} ranks: {' '.join(words)}"


def _rounds(nbytes: int) -> Rounds:
    """Seconds are for all contenders together."""
    if nbytes <= MIB:
        return Rounds(5, repetitions=40, warm_up=20)
    return Rounds(12, repetitions=4, warm_up=2) if nbytes <= 64 * MIB else Rounds(20, 2, 1)


def _allreduces(sizes: list[int]) -> list[tuple[What, Rounds]]:
    return [({"kind": "allreduce", "nbytes": nbytes}, _rounds(nbytes)) for nbytes in sizes]


def _loopback(ranks: int) -> Case:
    contenders = {"ringtrain-shm": SHM, "ringtrain-grpc": GRPC, "ringtrain-neighbour": GRPC}
    if ranks > 2:
        contenders["ringtrain-pods"] = SHM
    contenders |= {"gloo": {}, "mpi-shm": {}, "mpi-tcp": {}, "copy": {}}
    work = _allreduces(SIZES)
    work += [({"kind": "allreduce_many", "fused": fused}, Rounds(6, 3)) for fused in (True, False)]
    work += [({"kind": "step"}, Rounds(25, 3, 2)), ({"kind": "step", "in_place": True}, Rounds(15, 3, 2))]
    where = lambda: nullcontext(Loopback(ranks))  # noqa: E731
    return Case("one machine", ranks, where, contenders, work, [{"kind": "state"}])


def _pytorch(optimizer: str, ranks: int) -> Case:
    """A case for each optimizer: four ranks of each, beside all that came before, do not fit into 24 GiB."""
    contenders = {"ringtrain-shm": SHM, "ringtrain-grpc": GRPC, "gloo": {}}
    # Twelve to warm up: in the first ten steps DistributedOptimizer looks at all of a gradient's bits.
    work: list[tuple[What, Rounds]] = [({"kind": "pytorch", "optimizer": optimizer}, Rounds(25, 5, 12, 4))]
    return Case("one machine", ranks, lambda: nullcontext(Loopback(ranks)), contenders, work)


def _tensorflow(api: str, ranks: int) -> Case:
    """A case for each way in: TensorFlow's own workers give each other up while others compute for long."""
    keras2 = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **MALLOC}
    contenders = {"ringtrain-shm": keras2, "ringtrain-grpc": GRPC | keras2, "tensorflow": keras2}
    work: list[tuple[What, Rounds]] = [({"kind": "tensorflow", "api": api}, Rounds(16, 5, 3, 4))]
    return Case(f"TensorFlow, {api}", ranks, lambda: nullcontext(Loopback(ranks)), contenders, work)


def _jax() -> Case:
    """Both ways in, beside JAX's own collectives."""
    single = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", **MALLOC}
    contenders = {"ringtrain-shm": single, "ringtrain-grpc": GRPC | single, "jax": single}
    work: list[tuple[What, Rounds]] = [({"kind": "jax", "api": api}, Rounds(12, 3, 2, 4)) for api in ("grad", "host")]
    return Case("JAX", 2, lambda: nullcontext(Loopback(2)), contenders, work)


def _tensorflow_overlap() -> Case:
    """A backward pass as long as the wire needs: what is reduced during it does not count."""
    work: list[tuple[What, Rounds]] = [
        (overlap_of(api, alone), Rounds(5, 2, 2)) for api in OVERLAP_APIS for alone in (True, False)
    ]
    environment = GRPC | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return Case(TENSORFLOW_LINE, 2, lambda: namespaces(2, "1gbit"), {"ringtrain-grpc": environment}, work)


def overlap_of(api: str, alone: bool = False) -> What:
    """The step of TensorFlow's on the way `api`, whose backward pass is as long as the wire needs. `alone`: the
    update in it, without a pass and without an exchange."""
    return {
        "kind": "tensorflow_overlap",
        "api": api,
        "backward_s": 0.0 if alone else STEP_BYTES / LINE_BYTES_PER_S,
        "alone": alone,
    }


def _gigabit(hosts: int) -> Case:
    contenders = {"ringtrain-grpc": GRPC, "ringtrain-neighbour": GRPC, "gloo": {}, "mpi-tcp": {}}
    nbytes = 64 * MIB
    work: list[tuple[What, Rounds]] = [
        ({"kind": "allreduce", "nbytes": 16 * MIB}, Rounds(25, 2, 1)),
        ({"kind": "allreduce", "nbytes": nbytes}, Rounds(25, 2, 1)),
        ({"kind": "compressed", "nbytes": nbytes, "compression": "bf16"}, Rounds(8, 2, 1)),
    ]
    if hosts == 2:
        backward_s = STEP_BYTES / LINE_BYTES_PER_S
        work += [({"kind": "step", "backward_s": backward_s}, Rounds(20, 2, 1))]
        work += [({"kind": "step", "backward_s": 0.0}, Rounds(15, 1, 1)), (FRONT, Rounds(30, 1, 5))]
        work += [({"kind": "step", "backward_s": 0.0, "compression": "bf16"}, Rounds(8, 1, 1))]
    return Case("1 Gbit/s between hosts", hosts, lambda: namespaces(hosts, "1gbit"), contenders, work)


def _pods() -> Case:
    contenders = {"ringtrain": SHM, "ringtrain-grpc": GRPC, "gloo": {}, "mpi-tcp": {}}
    work: list[tuple[What, Rounds]] = [({"kind": "allreduce", "nbytes": 64 * MIB}, Rounds(15, 1, 1))]
    work += [({"kind": "step"}, Rounds(15, 1, 1))]
    where = lambda: namespaces(2, "1gbit", ranks_each=2)  # noqa: E731
    return Case("1 Gbit/s between pods of 2", 4, where, contenders, work)


def _encrypted(ranks: int) -> Case:
    """Return the case that compares gRPC with and without RINGTRAIN_ENCRYPT where no link limits the speed."""
    contenders = {"ringtrain-grpc": GRPC, "ringtrain-encrypted": GRPC | {"RINGTRAIN_ENCRYPT": "tensors"}}
    work = [*_allreduces([4 * KIB, MIB, 64 * MIB]), ({"kind": "step"}, Rounds(20, 3, 2))]
    return Case("encrypted, one machine", ranks, lambda: certified(ranks), contenders, work)


CASES = [_loopback(2), _loopback(4), _gigabit(2), _gigabit(4), _pods(), _encrypted(2)]
CASES += [_pytorch(optimizer, ranks) for optimizer in TORCH_OPTIMIZERS for ranks in (2, 4)]
CASES += [_tensorflow_overlap()]
CASES += [_tensorflow(api, ranks) for api in ("tape", "keras", "keras-host") for ranks in (2, 4)]
CASES += [_jax()]
