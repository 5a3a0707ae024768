"""Run a training function as ranks in Spark tasks (`ringtrain.spark`) or Ray actors (`ringtrain.ray`)."""
