"""Generators of files that follow from the models: the CRDs in manifests/, and docs/reference/api.md."""
