"""Serve a pool in this guest, and write and read a slab of it over each transport that needs no device."""

from __future__ import annotations

import subprocess

import farpool

TRANSPORTS = ("cxl", "tcp")
DATA = bytes(range(256)) * 256

with subprocess.Popen(["farpool", "serve", "--capacity", "64MiB"], stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    url = server.stdout.readline().split()[2]  # "farpool ready: URL URL"; however long that takes in a guest
    for name in TRANSPORTS:
        with farpool.connect(url, transport=name, timeout=120) as pool:
            slab = pool.allocate(len(DATA))
            slab.write(DATA)
            assert slab.read(len(DATA)) == DATA
            slab.free()
            print(f"{name}: {len(DATA)} bytes")
    server.terminate()
