"""The settings of a run: their tables, how text becomes values, names and plug-ins."""
