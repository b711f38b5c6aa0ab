def install() -> int:
    """Outlive SIGBUS in guarded mappings from now on; return a descriptor that is readable when one was lost.

    A process installs it once; later calls return the same descriptor. A SIGBUS elsewhere takes its old course.
    """

def seen() -> None:
    """Make the descriptor unreadable until the next mapping is lost."""
