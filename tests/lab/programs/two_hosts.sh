#!/bin/bash
# Two guests reach each other: ping, an RDMA read from A's memory into B's, bytes through the shared memory device.
set -euo pipefail
until ping -q -c 1 -W 1 "$LAB_PEER_IP" >/dev/null; do :; done
echo "pinged"
read_lat=(ib_read_lat --ib-dev="$LAB_RDMA_DEV" --gid-index="$LAB_GID_INDEX" --iters=20 --size=64 --CPU-freq)
if [[ $LAB_NAME == A ]]; then
    "${read_lat[@]}" >/dev/null
else
    until "${read_lat[@]}" "$LAB_PEER_IP" >/dev/null 2>&1; do sleep 0.2; done # until A listens
fi
echo "read"
python tests/lab/programs/exchange.py
