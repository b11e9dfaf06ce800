"""Benchmarks: ratios measured within one run, because machines are noisy (``make bench``)."""
