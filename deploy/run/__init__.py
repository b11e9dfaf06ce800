"""One run on this machine: settings, checks, the three runtimes, progress."""
