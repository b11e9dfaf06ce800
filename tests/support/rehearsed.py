"""Imported ahead by worker processes whose device is the rehearsal's."""

from tests.support.rehearsal import rehearsing

kept = rehearsing()  #: as long as the process
kept.__enter__()
