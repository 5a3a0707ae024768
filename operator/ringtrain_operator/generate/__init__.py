"""Generated from the models: manifests/crd.yaml and docs/reference/api.md."""
