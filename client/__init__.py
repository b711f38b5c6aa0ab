"""The client: pools, slabs, and their awaitable twins. Applications import these names from ``farpool``."""
