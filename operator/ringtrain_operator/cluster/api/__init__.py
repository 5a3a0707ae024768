"""A small asynchronous Kubernetes client. Objects are dicts, and every error is an `ApiError`."""
