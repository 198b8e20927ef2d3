"""Adapters to other libraries, each in a module of that library's name."""
