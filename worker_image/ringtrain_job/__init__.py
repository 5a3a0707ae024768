"""Programs around the ranks of a job: agent, launcher, log store, and the command `ringtrain`."""
