"""Reports about finished runs: curves, clients, partition, costs, failures; tables and listings."""
