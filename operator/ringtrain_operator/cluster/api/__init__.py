"""A thin asynchronous Kubernetes client: dicts in, dicts out, every error an `ApiError`."""
