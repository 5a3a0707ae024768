"""Internal errors of a connection that ended early, which callers convert to public ones."""


class ConnectionLost(Exception):
    """Error: the peer has closed the connection, or it broke."""


class DeadlinePassed(Exception):
    """Error: an operation on a connection has exceeded its deadline."""


class StreamReset(Exception):
    """Error: the peer has cancelled the current call."""


class ProtocolError(Exception):
    """Error: the peer does not speak HTTP/2, or uses a part of it that is not supported."""
