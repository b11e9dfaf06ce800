"""The settings of a run: their tables, and marks that say what each setting is."""
