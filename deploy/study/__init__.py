"""The papers' tables, and what finished runs are asked beyond their reports."""
