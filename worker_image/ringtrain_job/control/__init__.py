"""What agent and launcher share: values, their wire form, trust, and the termination message."""
