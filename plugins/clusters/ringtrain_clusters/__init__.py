"""Ranks in tasks that Spark or Ray schedules: ringtrain.spark, ringtrain.ray."""
