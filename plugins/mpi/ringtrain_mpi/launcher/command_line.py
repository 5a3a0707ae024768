"""Rewrite the user's mpirun command line: add -np, and run each program inside the wrapper that reports to the
agent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from ringtrain.errors import ConfigurationError, counted
from ringtrain_job.control.model import CannotRun, Reason
from ringtrain_mpi.implementation import MpiImplementation, MpirunVersion
from ringtrain_mpi.launcher.hosts import placing_options
from ringtrain_mpi.launcher.options import NUMBER, PER_NODE, VALUES

_MPIRUNS = ("mpirun", "mpiexec", "prterun", "orterun")
# Executed with the variables of the worker's agent: the path of the wrapper is known only in the worker.
WRAPPER = ("/bin/sh", "-c", 'exec "${RINGTRAIN_MPI_WRAPPER:?is set by the worker agent}" "$@"', "mpi-rank")


@dataclass(frozen=True)
class MpirunAppContext:
    """One program of an mpirun command line (`:` separates several), with its options. `processes`: value of -np, or
    None."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    processes: int | None = None
    per_node: bool = False


def is_mpirun(program: str) -> bool:
    """Return whether `program`, a name or a path, has the name of an mpirun. Example: `/usr/bin/mpiexec.hydra`."""
    return PurePath(program).name.split(".")[0] in _MPIRUNS


def parse_mpirun_arguments(arguments: Sequence[str], implementation: MpiImplementation) -> list[MpirunAppContext]:
    """Split mpirun's `arguments` into programs with their options. Raises ConfigurationError for an unknown option."""
    parts, rest = [], list(arguments)
    while rest:
        end = rest.index(":") if ":" in rest else len(rest)
        parts.append(_parse_mpirun_part(rest[:end], implementation))
        rest = rest[end + 1 :]
    return parts


def _parse_mpirun_part(words: list[str], implementation: MpiImplementation) -> MpirunAppContext:
    position, processes, per_node = 0, None, False
    while position < len(words) and words[position].startswith("-") and len(words[position]) > 1:
        if words[position] == "--":
            position += 1
            break
        name = words[position].lstrip("-")
        count = _mpirun_option_values(name, implementation)
        if position + count >= len(words):
            raise ConfigurationError(
                f"mpirun's command ends with the option {words[position]}; expected a program after it"
            )
        if name in NUMBER:
            processes = _mpirun_option_number(words[position], words[position + 1])
        per_node |= name in PER_NODE
        position += 1 + count
    program = tuple(words[position:])
    if not program:
        raise ConfigurationError("mpirun's command names no program to run")
    return MpirunAppContext(tuple(words[:position]), program, processes, per_node)


def _mpirun_option_values(name: str, implementation: MpiImplementation) -> int:
    if "=" in name:
        return 0
    try:
        return VALUES[implementation][name]
    except KeyError as exc:
        raise ConfigurationError(
            f"-{name} is not a known option of {implementation.value}'s mpirun, so the program after it cannot "
            "be found; set only the program as the command, and the option in spec.mpi.options"
        ) from exc


def _mpirun_option_number(option: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigurationError(f"mpirun's {option} is {value!r}: expected a number of processes")
    return int(value)


def refuse_mpirun_sizes(parts: Sequence[MpirunAppContext]) -> None:
    """Raise CannotRun (SlotsMismatch) if an elastic job's command fixes the number of ranks."""
    if len(parts) > 1 or parts[0].per_node or parts[0].processes is not None:
        raise CannotRun(
            Reason.SLOTS_MISMATCH,
            "the command sets the number of ranks (-np, or several programs), but in an elastic job the "
            "number changes; omit -np and pass one program",
        )


def declare_mpirun_size(parts: Sequence[MpirunAppContext], world_size: int) -> list[MpirunAppContext]:
    """Return `parts` with -np set to the job's world size, unless the user has set numbers.

    Raises CannotRun (SlotsMismatch) if the user's numbers differ from the declared world size.
    """
    given = [part.processes for part in parts if part.processes is not None]
    if not given and len(parts) == 1 and not parts[0].per_node:
        options = ("-np", str(world_size), *parts[0].options)
        return [replace(parts[0], options=options, processes=world_size)]
    if len(given) == len(parts) and sum(given) != world_size:
        raise CannotRun(
            Reason.SLOTS_MISMATCH,
            f"the command starts {counted(sum(given), 'rank')} (-np), but the job declares {world_size} (workers x "
            "slotsPerWorker); omit -np, or make the numbers equal",
        )
    return list(parts)


def wrapped_mpirun_program(parts: Sequence[MpirunAppContext]) -> list[str]:
    """Return mpirun's arguments for `parts`, with the rank wrapper before every program."""
    words: list[str] = []
    for part in parts:
        words += [":"] if words else []
        words += [*part.options, *WRAPPER, *part.program]
    return words


@dataclass(frozen=True)
class MpirunLine:
    """Fields that all mpirun command lines of a job share. `options`: from `spec.mpi`; `own_address`: the launcher's
    address. `hostfile`: path of the hostfile; empty if it does not exist yet."""

    mpirun: MpirunVersion
    options: tuple[str, ...]
    world_size: int
    own_address: str
    hostfile: str = ""

    def words(
        self, arguments: Sequence[str], *, as_declared: bool = True, variables: Collection[str] = ()
    ) -> list[str]:
        """Return the whole mpirun command line: Ringtrain's options, `arguments`, a rank wrapper before each program.

        Execute them with `mpirun.path` as the program, whatever the first word is: if the first word is a path, Open
        MPI starts its daemons from the same path on the workers. MPICH searches its daemons in that path's folder.
        `variables`: names of mpirun's variables. Raises CannotRun if -np is not the declared world size (only with
        `as_declared`), and ConfigurationError.
        """
        parts = parse_mpirun_arguments([*self.options, *arguments], self.mpirun.implementation)
        if as_declared:
            parts = declare_mpirun_size(parts, self.world_size)
        placing = placing_options(self.mpirun.implementation, self.own_address, variables)
        # Intel's mpirun reads slots only from such a file, and then ignores the user's -ppn.
        if self.mpirun.implementation is MpiImplementation.INTEL and not any(part.per_node for part in parts):
            placing += ["-machinefile", self.hostfile]
        bare = self.mpirun.implementation is MpiImplementation.OPEN_MPI
        called = PurePath(self.mpirun.path).name if bare else self.mpirun.path
        return [called, *placing, *wrapped_mpirun_program(parts)]
