"""Jobs on one machine without a cluster: pods are process groups, and the operator's `plan` decides."""
