"""What a script's library and the programs beside it (`ringtrain_job`) agree on, and all that both use."""
