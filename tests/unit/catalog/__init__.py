"""Tests of `llmgw.catalog`."""
