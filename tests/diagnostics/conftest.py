"""Fixtures of the tests of diagnoses."""

from diagnoses import few_draws

__all__ = ["few_draws"]
