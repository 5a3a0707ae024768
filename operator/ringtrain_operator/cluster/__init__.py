"""The driver that runs the pure `plan` against a Kubernetes API.

watch.py (kopf tells which keys changed) → queue.py → reconcile.py: observe.py, plan, apply.py, one status patch,
Events. `api/` is the only code that speaks HTTP to the API server.
"""
