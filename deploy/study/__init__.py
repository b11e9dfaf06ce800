"""Tables of runs, sweeps, analyses of finished runs, and conversion of traces."""
