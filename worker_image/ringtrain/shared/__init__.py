"""Code that the library and a job's launcher, agents and commands (`ringtrain_job`) have in common."""
