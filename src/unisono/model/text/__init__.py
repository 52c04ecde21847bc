"""Readers of TOML and text forms: scenarios, service level agreements, topologies and group references."""
