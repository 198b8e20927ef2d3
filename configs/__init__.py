"""The packaged YAML configurations, found by name with ``weince fit -c NAME``."""
