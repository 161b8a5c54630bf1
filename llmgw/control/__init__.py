"""Runs the loops: source, sessions, reconcile, publish, leadership; serves the admin API."""
