"""Commands of the program `ringtrain`, one module for each."""
