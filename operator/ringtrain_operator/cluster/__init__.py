"""Link between Kubernetes and the pure function `plan`: reads a job's state, and applies the planned changes.

watch.py (kopf reports changed keys) → queue.py → reconcile.py: observe.py, plan, apply.py, one status patch,
Events. Only `api/` sends HTTP requests to the API server.
"""
