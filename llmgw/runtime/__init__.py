"""The asyncio tools every loop is built from: owned tasks, latest values, backoff, the one clock. No domain."""
