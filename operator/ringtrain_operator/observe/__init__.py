"""Values that describe observed objects. Only this folder parses what the API, kubelets and launchers report."""
