"""Driver that runs the pure `plan` against a Kubernetes API.

watch.py (kopf reports changed keys) → queue.py → reconcile.py: observe.py, plan, apply.py, one status patch,
Events. Only `api/` sends HTTP requests to the API server.
"""
