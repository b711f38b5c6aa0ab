"""The control protocol: messages, frames, errors, units and addresses. Pure functions, no I/O."""
