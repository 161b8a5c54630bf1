"""Turns a whole source tree into a `Catalog`, or into `Problem`s with file, line and column. No files, no git."""
