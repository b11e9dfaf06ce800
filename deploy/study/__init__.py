"""Tables of runs, sweeps, and analyses of finished runs."""
