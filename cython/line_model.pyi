from farpool.native.mapping import Mapping

class LineModel:
    """The caches of one host over *memory*, for tests.

    ``fault`` makes one that forgets to write back (``"flush"``) or to fetch anew (``"invalidate"``).
    """

    def __init__(self, memory: Mapping, fault: str = "") -> None: ...
