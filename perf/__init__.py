"""The harness: measures a pool through the public client API alone, beside the machine's own limits.

How every number is made:

- Each measurement is bounded by time, not by a count. The limit and Farpool run alternately, in rounds
(limit, ours,
  limit, ours, ...) of one run, with the same buffers and the same offsets; a number is the median over the
  rounds.
- What one sample times is a block of operations. An operation of 2 us and more is a block of its own.
Quicker ones
  are timed in blocks of about 30 us, in one loop with no clock inside: their p50 and p99 are those of block
  means.
- A server that this process started runs on other processors than the client, and the limit's other end
where the
  server does; a server that somebody else started is left where it is.
- Nothing is subtracted: the loop around our calls is Python's, and its cost is part of our numbers.
- Operations below 64 KiB walk through 256 KiB (near the processor), larger ones through 32 MiB.
- ``limit`` is what the limit's loop in C reached: its p50 in us for operations below 64 KiB, its GB/s above.
- ``ratio`` is our speed as a fraction of the limit: higher is better, 1.0 is as fast as the limit.
"""
