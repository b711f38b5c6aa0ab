from farpool.protocol.errors import FarpoolError

class Encryption:
    """The encryption of one connection; whoever has the connection holds this."""

    def failure(self) -> FarpoolError | None:
        """Return the error that it has ended the connection with; None if it has not."""

class Encryptor:
    """What encrypts the connections that a server accepts."""
