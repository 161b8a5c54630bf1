"""What each engine is, as data: one adapter an engine, from profile, placement and ports to `ShardSpec`s. Pure."""
