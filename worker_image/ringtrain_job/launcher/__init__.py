"""The job's coordinator: barrier, verdict, log store, `/status` and `/metrics`."""
