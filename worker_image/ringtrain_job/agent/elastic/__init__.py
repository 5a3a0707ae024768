"""Ranks of an elastic job: processes that are started, told their worlds, and ended one by one."""
