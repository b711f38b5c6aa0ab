"""A laboratory of real kernels: guests under QEMU's software emulation, with soft-RoCE and emulated CXL memory.

``docs/lab.md`` is the page for users. Nothing of farpool is imported here.
"""
