"""Serve a pool in this guest, and write and read a slab of it over each transport that needs no device."""

from __future__ import annotations

import farpool

TRANSPORTS = ("cxl", "tcp")
DATA = bytes(range(256)) * 256

with farpool.serve_embedded(capacity="64MiB", transports=TRANSPORTS) as server:
    for name in TRANSPORTS:
        with farpool.connect(server.url, transport=name) as pool:
            slab = pool.allocate(len(DATA))
            slab.write(DATA)
            assert bytes(slab.read(len(DATA))) == DATA
            slab.free()
            print(f"{name}: {len(DATA)} bytes")
