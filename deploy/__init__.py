"""The operator's side: command line, runs, real machines, reports. Not part of the app bundle."""
