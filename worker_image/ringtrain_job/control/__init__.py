"""Data that agent and launcher exchange, its protobuf form, common settings, and the termination message."""
