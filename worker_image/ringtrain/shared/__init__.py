"""Code shared by the library and the programs of a job (`ringtrain_job`), including their common contract."""
