"""Reports about runs: curves, clients, partition, costs, failures; live page, metrics; tables and
listings."""
