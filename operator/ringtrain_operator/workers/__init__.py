"""What each kind of pod is: what is missing of it, what is lost or too much, and what the status says of it."""
