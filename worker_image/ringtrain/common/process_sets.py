"""What scripts import from `horovod.common.process_sets`, by the same names."""

from ringtrain._core.negotiation.queues import remove_process_set
from ringtrain._core.process_groups.process_sets import ProcessSet, add_process_set, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
