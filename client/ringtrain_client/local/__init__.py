"""A cluster of one machine: pods are process groups, and the same `plan` drives them."""
