"""Ranks in tasks that another system schedules, such as Spark: agents, places, results. Internal to this plugin."""
