"""Builds every object; the only module that knows them all."""
