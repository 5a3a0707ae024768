"""What exists, as values: the only folder that knows how the API, a kubelet and the launcher say things."""
