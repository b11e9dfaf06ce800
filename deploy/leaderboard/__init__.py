"""The leaderboard: every method under one protocol, with equal budgets for its settings."""
