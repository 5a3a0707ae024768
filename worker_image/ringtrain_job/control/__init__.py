"""Values that agent and launcher share, their wire form, settings, and the termination message."""
