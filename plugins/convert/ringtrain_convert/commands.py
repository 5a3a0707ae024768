"""Table of the command that this plugin adds to `dtj`."""

from ringtrain_client.cli.commands import LazyCommand

COMMANDS = (
    LazyCommand("convert", "ringtrain_convert.command:convert", "Print Kubeflow's jobs as DistributedTrainingJobs."),
)
