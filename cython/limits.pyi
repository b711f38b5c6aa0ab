from typing_extensions import Buffer

# Everywhere: `samples` is a writable, contiguous int64 array that takes nanoseconds, `offsets` an int64
# array of bytes, the other buffers are contiguous unsigned bytes; `seconds` bounds the loop (60 at most
# over memory and files), and the number of samples written is returned.

def clock_overhead(samples: Buffer, seconds: float) -> int:
    """Time nothing at all: what each sample of every other loop holds beside its block."""

def read_memory(
    memory: Buffer, offsets: Buffer, buffer: Buffer, nbytes: int, calls: int, samples: Buffer, seconds: float
) -> int:
    """Copy with memcpy from *memory* at each offset in turn to *buffer*, *calls* copies a sample.

    A buffer of several times *nbytes* is filled part by part. Raises ``OutOfBounds``, ``InvalidArgument``.
    """

def write_memory(
    memory: Buffer, offsets: Buffer, buffer: Buffer, nbytes: int, calls: int, samples: Buffer, seconds: float
) -> int:
    """Copy with memcpy from *buffer* to *memory* at each offset in turn, *calls* copies a sample."""

def add_words(memory: Buffer, offsets: Buffer, calls: int, samples: Buffer, seconds: float) -> int:
    """Add 1 atomically to the aligned word at each offset in turn, *calls* additions a sample."""

def load_words(memory: Buffer, offsets: Buffer, calls: int, samples: Buffer, seconds: float) -> int:
    """Load the aligned word at each offset in turn, *calls* loads a sample."""

def slab_files(directory: int, name: bytes, nbytes: int, samples: Buffer, seconds: float) -> int:
    """Make file *name* in *directory* (a descriptor), reserve its pages, map, unmap, remove it: one sample.

    That is the kernel's whole share of an allocation and a free. Raises ``OSError``; no file is left behind.
    """

def round_trips(
    fd: int,
    request: Buffer,
    reply: Buffer,
    samples: Buffer,
    seconds: float,
    timeout: float,
    *,
    ahead: int = 1,
) -> int:
    """Send *request* and wait for *reply* over the blocking socket *fd*, again and again: one sample each.

    With *ahead* above 1 so many requests are always under way (a raw stream), and a sample is the time from
    one reply to the next. Raises ``ServerLost``, and ``DeadlineExceeded`` when nothing moves for *timeout*
    seconds, or when a round trip is not done after twice that.
    """

def serve_round_trips(
    fd: int, inbox: Buffer, request_nbytes: int, outbox: Buffer, reply_nbytes: int, timeout: float
) -> int:
    """Answer each request on the blocking socket *fd* until the peer closes it; return how many there were.

    Requests are received into *inbox* and replies sent from *outbox*, a step further each time. Raises
    ``ServerLost`` if the connection ends inside a request, ``DeadlineExceeded`` after *timeout* seconds of
    silence.
    """
