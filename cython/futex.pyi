from farpool.native.mapping import Mapping

def wake(mapping: Mapping, offset: int) -> None:
    """Wake whoever waits for the aligned word at *offset*, in any process."""
