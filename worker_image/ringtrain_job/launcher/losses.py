"""Record of a generation's losses and their causes, until the next generation is formed."""

from dataclasses import replace

from ringtrain_job.control.model import Failure, RankPhase
from ringtrain_job.launcher.generation import member_standings
from ringtrain_job.launcher.generation_state import GenerationState
from ringtrain_job.launcher.members import MemberProcess, Standing, WorldView
from ringtrain_job.launcher.verdict import GangView, RankExit, WorkerView, failures_by_time, first_cause


class GenerationLosses:
    """Recorder of ended processes: members of the last generation, and processes that ended before they joined one."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerView] = {}
        self._generation = -1
        self._exits: dict[tuple[int, str, int], RankExit] = {}
        self._lost_workers: dict[int, WorkerView] = {}

    def note(self, state: GenerationState, view: WorldView, gang: GangView, now: float) -> None:
        """Record the losses that `view` and `gang` show at time `now`."""
        if state.formed != self._generation:
            self._generation, self._exits, self._lost_workers = state.formed, {}, {}
        for exit in gang.exits:
            slot = view.slots[exit.state.rank]
            self._exits.setdefault((slot.slot, slot.instance, exit.state.life), exit)
        for slot in view.slots.values():
            if slot.instance:
                self._workers[slot.instance] = gang.workers[slot.worker]
        for process, at in member_standings(state, view).items():
            if at is Standing.GONE and (process.slot, process.instance, process.life) not in self._exits:
                self._add_loss(process, view, now)

    def cause(self, state: GenerationState, gang: GangView) -> Failure | None:
        """Return the first cause of the generation's loss; None if nothing was lost."""
        members = {(process.slot, process.instance, process.life) for process in state.members}
        exits = [exit for key, exit in self._exits.items() if not members or key in members]
        workers = [self._lost_workers.get(worker.index, worker) for worker in gang.workers]
        seen = replace(gang, workers=workers, exits=exits, members=[process.slot for process in state.members])
        return first_cause(seen, failures_by_time(exits), [workers[index] for index in self._lost_workers])

    def of_slot(self, slot: int, gang: GangView) -> Failure | None:
        """Return the failure of the newest failed process in `slot`; None if none failed."""
        exits = [exit for exit in [*self._exits.values(), *gang.exits] if exit.state.rank == slot]
        failed = [exit for exit in exits if exit.state.phase is RankPhase.FAILED]
        return first_cause(gang, failed[-1:], []) if failed else None

    def _add_loss(self, process: MemberProcess, view: WorldView, now: float) -> None:
        slot = view.slots[process.slot]
        if slot.instance == process.instance and not slot.lost and not slot.leaving:
            return  # its process was replaced, and its agent is in contact
        known = self._workers.get(process.instance, WorkerView(slot.worker, f"worker-{slot.worker}"))
        if slot.worker not in self._lost_workers:
            self._lost_workers[slot.worker] = replace(known, silent_since=known.silent_since or now)
