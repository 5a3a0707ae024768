"""Table of the commands that this plugin adds to `ringtrain` (entry point `ringtrain.commands`)."""

from ringtrain_job.cli.commands import LazyCommand

COMMANDS = (
    LazyCommand("compare", "ringtrain_page.listing_command:compare_runs", "Compare runs side by side."),
    LazyCommand("list", "ringtrain_page.listing_command:list_runs", "List runs, the newest first.", meant=("ls", "ps")),
    LazyCommand("report", "ringtrain_page.report_command:report", "Write a run as one HTML page."),
    LazyCommand("ui", "ringtrain_page.ui_command:ui", "Show runs in a browser, live."),
)
