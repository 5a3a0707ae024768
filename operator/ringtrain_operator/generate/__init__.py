"""Generated from the models: the CRDs in manifests/ and docs/reference/api.md."""
