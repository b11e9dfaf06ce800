"""The operator's side, outside the app bundle: command line, runs, machines, reports, studies."""
