"""Several servers behind proxies, clients that check every answer, and what goes wrong with them.

Tests and benchmarks share it: here is what is done and measured, there what is asserted or printed.
"""
