"""The operator's side: launchers, reports, benchmarks. Not part of the app bundle."""
