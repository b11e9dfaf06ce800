"""The server half: one ServerApp that selects, sends, receives, aggregates, scores and records."""
