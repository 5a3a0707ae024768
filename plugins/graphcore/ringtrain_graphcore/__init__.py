"""Graphcore's Python APIs (PopART, IPU strategies, Estimator) on Ringtrain, and an interface for other devices."""
