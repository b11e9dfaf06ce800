"""Runs on this machine: settings, checks, the three runtimes and progress."""
