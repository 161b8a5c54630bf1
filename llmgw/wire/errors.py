"""What can be wrong with a peer's bytes."""


class ProtocolError(Exception):
    """The peer does not speak our protocol, or not this version; the message says what to do."""
