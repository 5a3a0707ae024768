"""What agent and launcher share: values, their wire form, settings, and the termination message."""
