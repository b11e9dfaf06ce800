"""Documentation site: pages that mkdocs adds to `docs/`, generated from contracts and records."""
