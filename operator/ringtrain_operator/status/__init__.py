"""What the operator says about a job: the model of `status` and how it is made from what was observed."""
