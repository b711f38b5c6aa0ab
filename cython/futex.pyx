"""Wake those who wait for a word of a mapping; the waiting itself is ``CxlRegion.park``."""

from farpool.native.libfutex cimport futex_wake
from farpool.native.mapping cimport Mapping


def wake(Mapping mapping not None, Py_ssize_t offset):
    """Wake whoever waits for the aligned word at *offset*, in any process."""
    futex_wake(mapping.word(offset))
