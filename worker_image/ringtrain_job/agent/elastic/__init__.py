"""Ranks of an elastic job: processes that are started, given their worlds, and ended one by one."""
