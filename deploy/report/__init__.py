"""What a run leaves, shown: curves, clients, partition, costs, failures, and the papers' tables."""
