"""Real machines: certificates, keys, nodes, runs submitted from elsewhere."""
