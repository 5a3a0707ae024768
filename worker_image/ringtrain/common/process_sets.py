"""Process sets, importable as from `horovod.common.process_sets`."""

from ringtrain import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
