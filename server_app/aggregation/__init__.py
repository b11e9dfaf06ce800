"""Means of the clients' models: plain, robust, across architectures, over cached uploads."""
