"""Evaluation of trained encoders."""
