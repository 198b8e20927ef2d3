"""Thin adapters to other libraries, each imported only by its own name."""
