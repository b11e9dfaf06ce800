"""Files of a run on the server: journal, checkpoint, summary, and the lock on its folder."""
