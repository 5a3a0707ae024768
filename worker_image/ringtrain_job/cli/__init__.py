"""Commands of `ringtrain`, one module each."""
