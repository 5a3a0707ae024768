"""Log store of the launcher: files with the output and reports of all ranks, which survive a kill."""
