"""Observed state as values. Only this folder parses the formats of the API, of kubelets and of the launcher."""
