"""Aggregation: averages of the clients' models, plain, robust, across architectures, and OCA."""
