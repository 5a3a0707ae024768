"""Ranks in tasks that another system schedules, such as Spark: agents, places, results. No script imports it."""
