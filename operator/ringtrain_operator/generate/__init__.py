"""Generators for the CRDs in manifests/ and for docs/reference/api.md, from the models."""
