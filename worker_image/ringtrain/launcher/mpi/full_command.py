"""The whole command line of one mpirun."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ringtrain.launcher.mpi.command_line import declare_size, parse, wrapped
from ringtrain.launcher.mpi.hosts import placing_options
from ringtrain.mpi.implementation import Implementation, Mpirun


@dataclass(frozen=True)
class MpirunLine:
    """What every mpirun of the job has in common. `options`: of `spec.mpi`; `own_address`: the launcher's."""

    mpirun: Mpirun
    options: tuple[str, ...]
    world_size: int
    own_address: str

    def words(self, arguments: Sequence[str], *, as_declared: bool = True) -> list[str]:
        """mpirun with the user's `arguments`: our options first, every program inside the wrapper.

        To be executed from `mpirun.path`, whatever the first word is: Open MPI takes a path there as a wish that
        its daemons be started from the same path on the workers, and MPICH looks for them beside it.
        Raises MpiCondition when -np is not the declared world (unless not `as_declared`), and ConfigurationError.
        """
        parts = parse([*self.options, *arguments], self.mpirun.implementation)
        if as_declared:
            parts = declare_size(parts, self.world_size)
        placing = placing_options(self.mpirun.implementation, self.own_address)
        bare = self.mpirun.implementation is Implementation.OPEN_MPI
        called = PurePath(self.mpirun.path).name if bare else self.mpirun.path
        return [called, *placing, *wrapped(parts)]
