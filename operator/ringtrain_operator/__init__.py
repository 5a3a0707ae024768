"""The Ringtrain operator, which creates launcher and worker pods for each DistributedTrainingJob."""
