"""Runs on this machine: checks, the three runtimes and progress."""
