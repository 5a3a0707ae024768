"""Ranks of `ringtrain run` on several hosts, reached by ssh or in a SLURM job, and the command `horovodrun`."""
