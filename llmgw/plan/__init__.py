"""Decides the next `Plan` from one `Snapshot`; `check` checks any plan against any snapshot. Pure and synchronous."""
