"""Table of the commands that this plugin adds to `ringtrain` (entry point `ringtrain.commands`)."""

from ringtrain_job.cli.commands import LazyCommand

COMMANDS = (
    LazyCommand("export", "ringtrain_sinks.export_command:export", "Send a run to MLflow, W&B or TensorBoard."),
    LazyCommand("tensorboard", "ringtrain_sinks.tensorboard_command:tensorboard", "Show a run in TensorBoard."),
)
