"""Command line, runs, separate machines, reports and studies; not part of Flower's bundle."""
