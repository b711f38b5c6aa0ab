#!/bin/bash
# What one guest has: a soft-RoCE device, over which one queue pair reads another's memory, and a memory device.
set -euo pipefail
ibv_devices
read_lat=(ib_read_lat --ib-dev="$LAB_RDMA_DEV" --gid-index="$LAB_GID_INDEX" --iters=20 --size=64 --CPU-freq)
"${read_lat[@]}" >/dev/null &
until "${read_lat[@]}" "$LAB_IP" 2>/dev/null; do sleep 0.2; done # until the server listens
wait
test -c "$LAB_DAX"
echo "$LAB_DAX: $LAB_DAX_SIZE bytes"
python tests/lab/programs/small_pool.py
