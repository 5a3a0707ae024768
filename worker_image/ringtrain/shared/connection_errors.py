"""Reasons for the early end of a connection. None of these leaves the package."""


class ConnectionLost(Exception):
    """The peer has closed the connection, or it broke."""


class DeadlinePassed(Exception):
    """The deadline of the current operation has passed."""


class StreamReset(Exception):
    """The peer has cancelled the call."""


class ProtocolError(Exception):
    """The peer does not speak HTTP/2, or not this part of it."""
