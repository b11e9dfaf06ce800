"""The papers' tables and claims, and further analyses of finished runs."""
