"""Chooses an endpoint, or refuses a request with status and reason. No I/O, no clock, no chance of its own."""
