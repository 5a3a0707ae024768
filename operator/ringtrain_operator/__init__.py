"""The Ringtrain operator: turns a DistributedTrainingJob into launcher and worker pods."""
