"""Several servers behind proxies, clients that check every answer, and faults of the servers.

Tests and benchmarks share it: this package acts and measures, and they assert or print.
"""
