"""Module that worker processes preload, so that their device is the rehearsal device."""

from tests.support.rehearsal import rehearsing

kept = rehearsing()  #: until the process ends
kept.__enter__()
