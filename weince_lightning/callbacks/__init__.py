"""Training monitors."""
