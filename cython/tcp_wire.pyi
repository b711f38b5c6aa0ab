from typing import Final

MAGIC: Final[int]
VERSION: Final[int]
MAX_PARTS: Final[int]
OPERATIONS: Final[dict[str, int]]
STATUSES: Final[dict[int, str]]
REQUEST_BYTES: Final[int]
ANSWER_BYTES: Final[int]

def pack_request(
    operation: int,
    *,
    handle: int = 0,
    id: int = 0,
    generation: int = 0,
    offset: int = 0,
    length: int = 0,
    operand: int = 0,
    reserved: int = 0,
    magic: int = ...,
) -> bytes: ...
def pack_hello(slot: int, secret: bytes, *, version: int = ...) -> bytes: ...
def unpack_answer(data: bytes) -> dict[str, int]: ...
