"""The tcp data plane's wire format for Python: for tests, fuzzing and third parties; we use ``tcp_wire.pxd``."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

from farpool.native.operation cimport (
    OP_COMPARE_SWAP,
    OP_FETCH_ADD,
    OP_HELLO,
    OP_LOAD,
    OP_READ,
    OP_READV,
    OP_STORE,
    OP_WRITE,
    OP_WRITEV,
    STATUS_INVALID,
    STATUS_OK,
    STATUS_OUT_OF_BOUNDS,
    STATUS_READ_ONLY,
    STATUS_REFUSED,
    STATUS_SERVER_FULL,
    STATUS_SESSION_FULL,
    STATUS_STALE,
    STATUS_TENANT_FULL,
    STATUS_VERSION,
)

from farpool.protocol.errors import InvalidArgument, ProtocolError

MAGIC = WIRE_MAGIC
VERSION = WIRE_VERSION
MAX_PARTS = MOST_PARTS
OPERATIONS = {
    "hello": OP_HELLO,
    "read": OP_READ,
    "write": OP_WRITE,
    "readv": OP_READV,
    "writev": OP_WRITEV,
    "load": OP_LOAD,
    "store": OP_STORE,
    "fetch_add": OP_FETCH_ADD,
    "compare_swap": OP_COMPARE_SWAP,
}
STATUSES = {
    STATUS_OK: "ok",
    STATUS_STALE: "stale",
    STATUS_OUT_OF_BOUNDS: "out of bounds",
    STATUS_READ_ONLY: "read only",
    STATUS_INVALID: "invalid",
    STATUS_REFUSED: "refused",
    STATUS_VERSION: "version",
    STATUS_SESSION_FULL: "session full",
    STATUS_TENANT_FULL: "tenant full",
    STATUS_SERVER_FULL: "server full",
}
REQUEST_BYTES = sizeof(Request)
ANSWER_BYTES = sizeof(Answer)


def pack_request(uint8_t operation, *, uint32_t handle=0, uint64_t id=0, uint64_t generation=0, uint64_t offset=0,
                 uint64_t length=0, uint64_t operand=0, uint8_t reserved=0, uint16_t magic=WIRE_MAGIC):
    """Return one request's header."""
    cdef Request request
    request.magic = magic
    request.operation = operation
    request.reserved = reserved
    request.handle = handle
    request.id = id
    request.generation = generation
    request.offset = offset
    request.length = length
    request.operand = operand
    return PyBytes_FromStringAndSize(<char *> &request, sizeof(request))


def pack_hello(uint32_t slot, bytes secret not None, *, uint8_t version=WIRE_VERSION):
    """Return the header that opens a data connection; the secret has 32 bytes."""
    cdef Request request
    if len(secret) != SECRET_BYTES:
        raise InvalidArgument(f"a session's secret has {SECRET_BYTES} bytes, not {len(secret)}")
    request.magic = WIRE_MAGIC
    request.operation = OP_HELLO
    request.reserved = version
    request.handle = slot
    request.id = 0
    memcpy(&request.generation, <const char *> secret, SECRET_BYTES)
    return PyBytes_FromStringAndSize(<char *> &request, sizeof(request))


def unpack_answer(bytes data not None):
    """Return the fields of one answer's header."""
    cdef Answer answer
    if len(data) != sizeof(answer):
        raise ProtocolError(f"an answer's header has {sizeof(answer)} bytes, not {len(data)}")
    memcpy(&answer, <const char *> data, sizeof(answer))
    return {"magic": answer.magic, "operation": answer.operation, "status": answer.status, "handle": answer.handle,
            "id": answer.id, "length": answer.length, "detail": answer.detail}
